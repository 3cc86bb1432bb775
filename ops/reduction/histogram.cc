// Histograms over one dim or many: every rank counts its elements, and the counts are Partial. If the bins shall span
// the data, the ranks find the common range first; a density is computed from the counts.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/util/accumulate.h>

#include <numeric>
#include <string>
#include <utility>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/plain_range.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// ------------------------------------------------------------ rules

// Each element, or row of coordinates, of `self` may be split, and its weight likewise. The first of `num_outputs`
// results counts them, the others are edges.
FactorRule counts_rule(const OpCall& call, int64_t num_coordinate_dims, const OutputMetas& metas, bool counts) {
  const int self = call.input_index("self"), weight = call.input_index("weight");
  FactorRule rule;
  for (const SpecPtr& input : call.inputs) rule.inputs.emplace_back(input ? input->ndim() : 0, kNoFactor);
  const auto places = call.inputs[self]->ndim() - num_coordinate_dims;
  for (int64_t d = 0; d < places; ++d) {
    rule.inputs[self][d] = static_cast<int>(d);
    rule.contractions.push_back({static_cast<int>(d), ReduceOp::kSum});
  }
  const bool weighted = weight >= 0 && call.inputs[weight];
  if (weighted) {
    // A rank's kernel sees its own parts, which may fit on some ranks alone.
    TORCH_CHECK(call.inputs[weight]->sizes() == at::IntArrayRef(call.inputs[self]->sizes()).slice(0, places),
                call.name(), ": weight, if given, has one element for each that is counted, but got ",
                call.to_string());
    std::iota(rule.inputs[weight].begin(), rule.inputs[weight].end(), 0);
  }
  for (const auto& tensor : metas.tensors) rule.outputs.emplace_back(tensor->sizes.size(), kNoFactor);
  if (weighted && counts) rule.terms = {{weight}};
  return rule;
}

int64_t num_bins(const OpCall& call) {
  return call.has_arg("range") ? call.get_int("bins") : call.input("bins")->sizes()[0] - 1;
}

OutputMetas histogram_metas(const OpCall& call) {
  const int64_t bins = num_bins(call);
  TORCH_CHECK(bins > 0, "torch.histogram(): bins must be > 0, but got ", bins);
  const auto dtype = call.input("self")->dtype();
  OutputMetas metas = contiguous_metas({bins}, {dtype});
  metas.tensors.push_back(contiguous_metas({bins + 1}, {dtype}).tensors[0]);
  metas.counts.push_back(-1);
  return metas;
}

// The counts are Partial, the edges the same on all ranks.
std::vector<DimStrategy> histogram_strategies(const OpCall& call, int64_t mesh_dim) {
  TORCH_CHECK(!call.has_arg("bins") || call.has_arg("range") || call.input("bins")->ndim() == 1,
              "torch.histogram(): bins tensor should have one dimension, but got ", call.to_string());
  auto result = strategies(counts_rule(call, 0, histogram_metas(call), true), call, mesh_dim);
  for (DimStrategy& s : result) s.outputs[1] = Replicate();
  return result;
}

OutputMetas dd_counts_metas(const OpCall& call) {
  std::vector<int64_t> sizes;
  if (call.has_arg("range")) {
    sizes = *call.get_ints("bins");
  } else {
    for (size_t i = 1; i < call.inputs.size(); ++i) {
      if (static_cast<int>(i) != call.input_index("weight")) sizes.push_back(call.inputs[i]->sizes()[0] - 1);
    }
  }
  return contiguous_metas(sizes, {call.input("self")->dtype()});
}

OutputMetas dd_edges_metas(const OpCall& call) {
  OutputMetas metas;
  const std::vector<int64_t> each = *call.get_ints("bins");
  for (const int64_t bins : each)
    metas.tensors.push_back(contiguous_metas({bins + 1}, {call.input("self")->dtype()}).tensors[0]);
  metas.counts = {static_cast<int>(metas.tensors.size())};
  return metas;
}

std::vector<DimStrategy> dd_edges_strategies(const OpCall& call, int64_t mesh_dim) {
  auto result = strategies(counts_rule(call, 1, dd_edges_metas(call), false), call, mesh_dim);
  for (DimStrategy& s : result) std::fill(s.outputs.begin(), s.outputs.end(), Replicate());
  return result;
}

// ------------------------------------------------------------ on one rank

// A rank with an empty part counts one element of weight 0.
template <int kCoordinateDims>
void count_bins_local(const LocalCall& local, Stack& stack) {
  Arguments args(local.op, stack);
  const at::Tensor self = args.tensor("self");
  if (self.numel() == 0 && c10::multiply_integers(local.inputs[0]->sizes()) > 0) {
    std::vector<int64_t> sizes(self.dim(), 1);
    if (kCoordinateDims == 1) sizes.back() = self.size(-1);
    args.set("self", self.new_zeros(sizes));
    sizes.resize(sizes.size() - kCoordinateDims);
    args.set("weight", self.new_zeros(sizes));
  }
  local.op.callBoxed(stack);
}

// ------------------------------------------------------------ handlers

// Without a given range, it is that of the elements: the smallest and largest of each coordinate, one after the other.
void set_range(const c10::OperatorHandle& op, Arguments& args, int64_t coordinate_dims) {
  const auto at = op.schema().argumentIndexWithName("range");
  at::Tensor self = args.tensor("self");
  const bool counts = self.dim() >= coordinate_dims && self.numel() > 0;
  if (!at || !args["range"].isNone() || !counts) return;
  at::Tensor range = plain_range(self, coordinate_dims, op);
  LocalGuard guard;
  range = range.to(at::kDouble).contiguous();
  args.set("self", self);
  args.set("range",
           std::vector<double>(range.const_data_ptr<double>(), range.const_data_ptr<double>() + range.numel()));
}

// Counts per unit of volume, divided by the total count.
at::Tensor density_of(at::Tensor hist, const std::vector<at::Tensor>& edges) {
  hist = hist / hist.sum();
  for (size_t d = 0; d < edges.size(); ++d) {
    std::vector<int64_t> sizes(edges.size(), 1);
    sizes[d] = -1;
    hist = hist / edges[d].diff().view(sizes).to(hist.scalar_type());
  }
  return hist;
}

// histogram(self, bins or their edges, *, range, weight, density).
void histogram(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  const bool density = args["density"].toBool();
  set_range(op, args, 0);
  args.set("density", false);
  dispatch_by_rule(op, stack);
  if (!density) return;
  const auto results = torch::jit::last(stack, 2);
  const at::Tensor hist = density_of(results[0].toTensor(), {results[1].toTensor()});
  torch::jit::peek(stack, 0, 2) = hist;
}

// The edges of histogramdd(), which depend only on the range of the data.
void dd_edges(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  set_range(op, args, 1);
  dispatch_by_rule(op, stack);
}

std::vector<at::Tensor> edges_of(const c10::OperatorHandle& op, const Arguments& args) {
  if (args["bins"].isTensorList()) return args["bins"].toTensorVector();
  const auto edges = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_histogramdd_bin_edges", "");
  TORCH_INTERNAL_ASSERT(edges.schema().arguments().size() == op.schema().arguments().size());
  Stack stack;
  for (const char* name : {"self", "bins", "range", "weight", "density"}) stack.push_back(args[name]);
  edges.callBoxed(stack);
  return stack.back().toTensorVector();
}

// _histogramdd_from_bin_cts, _histogramdd_from_bin_tensors(self, bins, *, range, weight, density).
void dd_counts(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  set_range(op, args, 1);
  const bool density = args["density"].toBool();
  const auto edges = density ? edges_of(op, args) : std::vector<at::Tensor>();
  args.set("density", false);
  dispatch_by_rule(op, stack);
  if (density) stack.back() = density_of(stack.back().toTensor(), edges);
}

}  // namespace

const RuleFamily histogram_rules("histogram", [](RuleRegistry& registry) {
  OpRule one;
  one.per_dim = histogram_strategies;
  one.metas = histogram_metas;
  one.local = count_bins_local<0>;
  registry.add("aten::histogram", std::move(one));
  registry.add_handler("aten::histogram", histogram);

  OpRule counts = factor_op([](const OpCall& call) { return counts_rule(call, 1, dd_counts_metas(call), true); });
  counts.metas = dd_counts_metas;
  counts.local = count_bins_local<1>;
  for (const char* op : {"aten::_histogramdd_from_bin_cts", "aten::_histogramdd_from_bin_tensors"}) {
    registry.add(op, counts);
    registry.add_handler(op, dd_counts);
  }
  OpRule edges;
  edges.per_dim = dd_edges_strategies;
  edges.metas = dd_edges_metas;
  edges.local = count_bins_local<1>;
  registry.add("aten::_histogramdd_bin_edges", std::move(edges));
  registry.add_handler("aten::_histogramdd_bin_edges", dd_edges);
});

}  // namespace dtensor::internal
