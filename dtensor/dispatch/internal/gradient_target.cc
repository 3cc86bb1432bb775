#include "dtensor/dispatch/internal/gradient_target.h"

#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/gradients/gradient_bucket.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/gradients/leaf_group.h"
#include "dtensor/tensor/representation.h"
#include "plan/cost_policy.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using Target = std::pair<const Node*, uint32_t>;

constexpr size_t kMostNodes = 64;  // on a path to parameters

// How many gradients are added up at each input of the functions of the present backward.
int gradients_added_at(const Edge& edge) {
  struct Counts {
    int backward = -1;
    std::map<Target, int> of;
  };
  static thread_local Counts counts;
  const int backward = torch::autograd::get_current_graph_task_id();
  if (counts.backward != backward) {
    counts = {backward, {}};
    if (const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph()) {
      for (const Node* node : *nodes) {
        for (const Edge& next : node->next_edges()) {
          if (next.function) ++counts.of[{next.function.get(), next.input_nr}];
        }
      }
    }
  }
  const auto found = counts.of.find({edge.function.get(), edge.input_nr});
  return found == counts.of.end() ? 0 : found->second;
}

c10::IntArrayRef gradient_sizes(const Node& node, uint32_t input) {
  return C10_AS_INTARRAYREF_SLOW(node.input_metadata(input).shape_as_dim_vector());
}

// Elements sent by its reduction: an expanded gradient is sent unexpanded.
int64_t elements_to_reduce(const Spec& gradient) {
  int64_t n = 1;
  for (int64_t d = 0; d < gradient.ndim(); ++d) n *= gradient.strides()[d] == 0 ? 1 : gradient.sizes()[d];
  return n;
}

// Shapes as for inputs and results of an elementwise operator or a view.
bool are_alike(c10::IntArrayRef a, c10::IntArrayRef b) {
  if (c10::multiply_integers(a) == c10::multiply_integers(b)) return true;
  for (size_t d = 1; d <= std::min(a.size(), b.size()); ++d) {
    const int64_t x = a[a.size() - d], y = b[b.size() - d];
    if (x != y && x != 1 && y != 1) return false;
  }
  return true;
}

// Whether the gradient, Partial as in `spec`, reaches this parameter's layout by a reduction alone, which can be
// deferred.
bool takes_partial(const at::Tensor& leaf, const Spec& spec) {
  if (!is_dtensor(leaf) || !(spec_of(leaf)->mesh() == spec.mesh())) return false;
  for (size_t d = 0; d < spec.placements().size(); ++d) {
    if (spec.placements()[d].is_partial() && !spec_of(leaf)->placements()[d].is_replicate() && !leaf_group_of(leaf))
      return false;
  }
  return true;
}

bool goes_to_parameters(const Node& from, const Spec& gradient) {
  std::set<const Node*> seen{&from};
  std::vector<const Node*> waiting{&from};
  int64_t elements = 0;  // of parameters with this gradient only
  bool any = false;
  while (!waiting.empty()) {
    const Node& node = *waiting.back();
    waiting.pop_back();
    for (const Edge& edge : node.next_edges()) {
      if (!edge.function) continue;
      const auto sizes = gradient_sizes(*edge.function, edge.input_nr);
      for (uint32_t k = 0; k < node.num_inputs(); ++k) {
        if (!are_alike(gradient_sizes(node, k), sizes)) return false;
      }
      if (!seen.insert(edge.function.get()).second) continue;
      if (const auto* sink = dynamic_cast<const AccumulateGrad*>(edge.function.get())) {
        if (!takes_partial(sink->variable, gradient)) return false;
        if (gradients_added_at(edge) < 2) elements += sink->variable.numel();
        any = true;
      } else if (seen.size() > kMostNodes || edge.function->next_edges().empty()) {
        return false;
      } else {
        waiting.push_back(edge.function.get());
      }
    }
  }
  return any && static_cast<double>(elements) <= kBucketedElements * static_cast<double>(elements_to_reduce(gradient));
}

bool is_added_to_others(const Node& node) {
  return node.num_outputs() == 1 && node.next_edge(0).function && gradients_added_at(node.next_edge(0)) > 1;
}

// The largest input that is a Partial sum, and as large as the result along the sharded dims. Null: there is none, or
// an input is written to.
const Spec* partial_gradient(const OpInfo& info, const Inputs& in) {
  const Spec* gradient = nullptr;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!t.defined()) continue;
    if (info.args[in.arg_of[k]].written) return nullptr;
    const Spec& spec = *spec_of(t);
    if (!spec.has_partial() || (gradient != nullptr && gradient->meta().numel() >= spec.meta().numel())) continue;
    gradient = &spec;
  }
  if (gradient == nullptr) return nullptr;
  const auto waits = [](const Placement& p) {
    return p.is_replicate() || p.is_sharded() ||
           (p.is_partial() && !p.is_mask_partial() && p.reduce_op() == ReduceOp::kSum);
  };
  return std::all_of(gradient->placements().begin(), gradient->placements().end(), waits) ? gradient : nullptr;
}

// Sizes of the result, if the operator is elementwise; for others this may be wrong, which affects only a price.
// nullopt: the dims of `gradient` differ there.
std::optional<Shape> broadcast_sizes(const Inputs& in, const Spec& gradient) {
  Shape sizes = gradient.sizes();
  for (const at::Tensor& t : in.tensors) {
    if (!t.defined()) continue;
    const Shape& other = spec_of(t)->sizes();
    if (other.size() > sizes.size()) return std::nullopt;
    for (size_t d = 1; d <= other.size(); ++d) {
      int64_t& size = sizes[sizes.size() - d];
      if (size == 1) size = other[other.size() - d];
    }
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto cuts = [&](const Placement& p) { return p.is_sharded_on(static_cast<int64_t>(d)); };
    const bool is_cut = std::any_of(gradient.placements().begin(), gradient.placements().end(), cuts);
    if (is_cut && sizes[d] != gradient.sizes()[d]) return std::nullopt;
  }
  return sizes;
}

// The Partial layout in which the result can be deferred. Null: it cannot, or that is not known.
SpecPtr layout_to_wait_in(const OpInfo& info, const Inputs& in) {
  const bool casts = info.name == "aten::_to_copy";
  if (info.is_view || !may_wait_in_bucket()) return nullptr;
  const Spec* gradient = partial_gradient(info, in);
  const auto node = torch::autograd::get_current_node();
  if (gradient == nullptr || !node) return nullptr;
  if (!goes_to_parameters(*node, *gradient) && !(casts && is_added_to_others(*node))) return nullptr;
  const auto sizes = broadcast_sizes(in, *gradient);
  if (!sizes) return nullptr;
  const TensorMeta meta{*sizes, row_major_strides({sizes->data(), sizes->size()}), gradient->dtype()};
  return Spec::get(gradient->mesh(), gradient->placements(), meta);
}

}  // namespace

at::Tensor leaf_of_gradient(const OpRule& rule) {
  if (!rule.uses_gradient_target) return {};
  at::Tensor leaf = gradient_leaf();
  return leaf.defined() && leaf_group_of(leaf) ? at::Tensor() : leaf;
}

SpecPtr find_gradient_target(const OpInfo& info, const at::Tensor& leaf, const Inputs& in) {
  return leaf.defined() ? spec_of(leaf) : layout_to_wait_in(info, in);
}

}  // namespace dtensor::internal
