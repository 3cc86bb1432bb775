#include "dtensor/tensor/module_of_call.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

constexpr size_t kMostFunctions = 1024;  // that a report looks at

// Backward functions of operators that only arrange or cast their input, as modules do with a weight before they use
// it.
constexpr std::array<std::string_view, 8> kOfArrangements{
    "TBackward0",         "TransposeBackward0", "PermuteBackward0", "ViewBackward0", "ReshapeAliasBackward0",
    "UnsqueezeBackward0", "ExpandBackward0",    "ToCopyBackward0",
};

// The module of the parameter whose gradient arrives at `node`, or passes there alone. nullopt: none that has a name.
std::optional<std::string> module_of_parameter(const Node* node) {
  while (node != nullptr) {
    if (const auto* sink = dynamic_cast<const AccumulateGrad*>(node)) {
      const at::Tensor& leaf = sink->variable;
      if (!is_dtensor(leaf) || !meta_without_sync(leaf).name) return std::nullopt;
      return module_of(meta_without_sync(leaf));
    }
    if (node->next_edges().size() != 1) break;  // before the name, which takes longer to find
    if (std::find(kOfArrangements.begin(), kOfArrangements.end(), node->name()) == kOfArrangements.end()) break;
    node = node->next_edge(0).function.get();
  }
  return std::nullopt;
}

// Of the first parameter with a name that the operator of `node` read.
std::optional<std::string> module_read_by(const Node& node) {
  for (const auto& edge : node.next_edges()) {
    if (auto module = module_of_parameter(edge.function.get())) return module;
  }
  return std::nullopt;
}

// The function that computed `t`; null: none. Unlike grad_fn() it computes nothing for a view whose base was written
// to, whose function is that of the base.
const Node* function_of(const at::Tensor& t) {
  const auto* meta = static_cast<const torch::autograd::AutogradMeta*>(t.unsafeGetTensorImpl()->autograd_meta());
  if (meta == nullptr) return nullptr;
  if (meta->is_view_) {
    const auto& view = static_cast<const torch::autograd::DifferentiableViewMeta&>(*meta);
    if (view.has_bw_view() && view.get_attr_version() != t._version())
      return function_of(view.get_backward_view().base_);
  }
  return meta->grad_fn_.get();
}

// Of the operators that `functions` belong to and those that they depend on, the last one that read a parameter with a
// name: the module of that.
std::optional<std::string> last_module(const std::vector<const Node*>& functions) {
  const auto is_earlier = [](const Node* a, const Node* b) { return a->sequence_nr() < b->sequence_nr(); };
  std::priority_queue waiting(functions.begin(), functions.end(), is_earlier);
  std::set<const Node*> seen;
  while (!waiting.empty() && seen.size() < kMostFunctions) {
    const Node* const node = waiting.top();
    waiting.pop();
    if (!seen.insert(node).second) continue;
    if (auto module = module_read_by(*node)) return module;
    for (const auto& edge : node->next_edges()) {
      const Node* const next = edge.function.get();
      if (next != nullptr && dynamic_cast<const AccumulateGrad*>(next) == nullptr) waiting.push(next);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string module_of_call(c10::ArrayRef<at::Tensor> inputs) {
  for (const at::Tensor& t : inputs) {
    if (is_dtensor(t) && meta_without_sync(t).name) return module_of(meta_without_sync(t));
  }
  if (!has_listeners() && process_listener() == nullptr) return current_scope().module_path;
  std::vector<const Node*> functions;
  const bool backward = in_backward();
  // Lives until the end: `functions` point to it.
  const auto node = backward ? torch::autograd::get_current_node() : nullptr;
  if (node) {
    if (auto module = module_of_parameter(node.get())) return *module;  // in a hook of the parameter
    if (auto module = module_read_by(*node)) return *module;
    functions.push_back(node.get());
  }
  for (const at::Tensor& t : inputs) {
    if (backward || !is_dtensor(t)) continue;  // with create_graph, gradients come from functions of this backward
    const Node* const function = function_of(t);
    if (function == nullptr) continue;
    if (auto module = module_of_parameter(function)) return *module;
    functions.push_back(function);
  }
  if (const std::string& scope = current_scope().module_path; !scope.empty()) return scope;
  const auto module = last_module(functions);
  return module && !module->empty() ? "after " + *module : std::string();
}

CommCause call_cause(const c10::OperatorHandle& op, std::string argument, c10::ArrayRef<at::Tensor> inputs) {
  return {c10::toString(op.operator_name()), std::move(argument), module_of_call(inputs), /*implicit=*/true};
}

}  // namespace dtensor::internal
