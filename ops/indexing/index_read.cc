// Look-ups: index_select, gather, advanced indexing. If the indexed dim is sharded, every rank looks up the indices
// that point into its part and returns zeros for the others, so the result is Partial(sum). Where there are no indices
// nothing is looked up.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/indexing/advanced_index.h"
#include "ops/indexing/local_index.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/movement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// One rank in a sum has the value, the others zero; bools are not added up.
void allow_lookup(FactorRule& rule, const OpCall& call, int factor) {
  if (call.inputs[0]->dtype() != c10::ScalarType::Bool) rule.contractions.push_back({factor, ReduceOp::kSum});
}

OutputMetas metas(const std::vector<int64_t>& sizes, c10::ScalarType dtype) {
  return metas_of({at::empty(sizes, at::TensorOptions(dtype).device(c10::DeviceType::Meta))});
}

at::Tensor zeros_of_output(const LocalCall& call, const at::Tensor& self) {
  const Shape sizes = call.outputs[0]->local_shape(call.i);
  return at::zeros(c10::IntArrayRef(sizes.data(), sizes.size()), self.options());
}

// The result of `look_up` for the indices into this rank's `runs` of `dim`, and zeros for the others. `along`: the
// sizes of the indices, broadcastable to the result.
template <typename LookUp>
at::Tensor masked_lookup(const LocalCall& call, const at::Tensor& self, const at::Tensor& index, int64_t dim,
                         const IndexRanges& runs, at::IntArrayRef along, const LookUp& look_up) {
  check_range(index, 0, call.inputs[0]->sizes()[dim], dim);
  if (runs.empty()) return zeros_of_output(call, self);
  const LocalIndex mine = localize(index, runs, 0);
  return look_up(mine.index).masked_fill_(mine.held.logical_not().view(along), 0);
}

// ------------------------------------------------------------ index_select

FactorRule index_select(const OpCall& call) {
  const Spec &self = *call.inputs[0], &index = *call.inputs[1];
  FactorRule rule;
  OutputDims dims = same_dims(self.ndim());
  const int looked_up = static_cast<int>(dims.size());
  rule.inputs = {dims, OutputDims(index.ndim(), looked_up)};
  if (self.ndim() > 0) {
    const int64_t dim = wrap_dim(call.get_int("dim"), self.ndim());
    allow_lookup(rule, call, dims[dim]);
    dims[dim] = index.ndim() > 0 ? looked_up : kNoFactor;
  } else {
    rule.inputs[1].assign(index.ndim(), kNoFactor);
  }
  rule.outputs = {dims};
  pass_all_partials(rule, {0});
  return rule;
}

OutputMetas index_select_metas(const OpCall& call) {
  const Spec &self = *call.inputs[0], &index = *call.inputs[1];
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end());
  const int64_t dim = wrap_dim(call.get_int("dim"), self.ndim());
  TORCH_CHECK_INDEX(index.ndim() <= 1, "index_select(): Index is supposed to be a vector, but got dim: ", index.ndim());
  TORCH_CHECK_INDEX(index.dtype() == c10::ScalarType::Long || index.dtype() == c10::ScalarType::Int,
                    "index_select(): Expected dtype int32 or int64 for index");
  if (!sizes.empty()) sizes[dim] = index.meta().numel();
  return metas(sizes, self.dtype());
}

void index_select_local(const LocalCall& call, Stack& stack) {
  const Spec& spec = *call.inputs[0];
  const int64_t dim = spec.ndim() > 0 ? wrap_dim(stack[1].toInt(), spec.ndim()) : 0;
  const IndexRanges runs = spec.ndim() > 0 ? spec.local_layout(call.i).dims[dim] : IndexRanges{};
  if (spec.ndim() == 0 || holds_all(runs, spec.sizes()[dim])) return call.op.callBoxed(stack);
  const at::Tensor self = stack[0].toTensor(), index = stack[2].toTensor();
  std::vector<int64_t> along(self.dim(), 1);
  along[dim] = index.numel();
  const auto look_up = [&](const at::Tensor& mine) { return self.index_select(dim, mine); };
  leave_result(call, stack, masked_lookup(call, self, index, dim, runs, along, look_up));
}

// ------------------------------------------------------------ gather

// Dims other than `dim` may be cut if the index is as long as the tensor there; where it is shorter, only the index's.
FactorRule gather(const OpCall& call) {
  const Spec &self = *call.inputs[0], &index = *call.inputs[1];
  const int n = static_cast<int>(index.ndim());
  FactorRule rule;
  rule.inputs = {OutputDims(self.ndim(), kNoFactor), same_dims(n)};
  rule.outputs = {same_dims(n)};
  if (self.ndim() == index.ndim() && n > 0) {
    const int dim = static_cast<int>(wrap_dim(call.get_int("dim"), n));
    for (int d = 0; d < n; ++d) {
      if (d != dim && self.sizes()[d] == index.sizes()[d]) rule.inputs[0][d] = d;
    }
    rule.inputs[0][dim] = n;
    allow_lookup(rule, call, n);
  } else {
    rule.inputs[1].assign(n, kNoFactor);
  }
  pass_all_partials(rule, {0});
  return rule;
}

void gather_local(const LocalCall& call, Stack& stack) {
  const Spec &spec = *call.inputs[0], &index_spec = *call.inputs[1];
  at::Tensor self = stack[0].toTensor(), index = stack[2].toTensor();
  if (self.dim() == 0 || self.dim() != index.dim()) return call.op.callBoxed(stack);
  const int64_t dim = wrap_dim(stack[1].toInt(), spec.ndim());
  const LocalLayout layout = spec.local_layout(call.i), index_layout = index_spec.local_layout(call.i);
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim && self.size(d) > index.size(d)) self = take_runs(self, d, index_layout.dims[d]);
  }
  stack[0] = self;
  const IndexRanges& runs = layout.dims[dim];
  if (holds_all(runs, spec.sizes()[dim])) return call.op.callBoxed(stack);
  const auto look_up = [&](const at::Tensor& mine) { return self.gather(dim, mine); };
  leave_result(call, stack, masked_lookup(call, self, index, dim, runs, index.sizes(), look_up));
}

// ------------------------------------------------------------ advanced indexing

FactorRule index(const OpCall& call) {
  const AdvancedIndex layout(call);
  FactorRule rule;
  rule.inputs = layout.input_factors();
  rule.outputs = {layout.result_factors()};
  for (int64_t d : layout.indexed_dims()) allow_lookup(rule, call, rule.inputs[0][d]);
  pass_all_partials(rule, {0});
  return rule;
}

void index_local(const LocalCall& call, Stack& stack) {
  const at::Tensor self = stack[0].toTensor();
  const LocalIndices parts = localize_indices(call, stack, /*writing=*/false);
  if (!parts.held.defined()) return call.op.callBoxed(stack);
  at::Tensor result;
  if (self.numel() == 0) {
    result = zeros_of_output(call, self);
  } else {
    stack[1] = parts.indices;
    call.op.callBoxed(stack);
    result = stack[0].toTensor();
    // The mask broadcasts to the result, ending at the last of the broadcast dims.
    std::vector<int64_t> sizes(result.dim(), 1);
    std::copy(parts.held.sizes().begin(), parts.held.sizes().end(), sizes.begin() + parts.end - parts.held.dim());
    result.masked_fill_(parts.held.logical_not().view(sizes), 0);
  }
  leave_result(call, stack, std::move(result));
}

// ------------------------------------------------------------ others

// Indexes the flattened tensor: computed whole.
FactorRule take(const OpCall& call) {
  FactorRule rule;
  const OutputDims dims = same_dims(call.inputs[1]->ndim());
  rule.inputs = {OutputDims(call.inputs[0]->ndim(), kNoFactor), dims};
  rule.outputs = {dims};
  pass_all_partials(rule, {0});
  return rule;
}

OutputMetas take_metas(const OpCall& call) {
  const Shape& sizes = call.inputs[1]->sizes();
  return metas({sizes.begin(), sizes.end()}, call.inputs[0]->dtype());
}

// Positions of values in sorted lists: values may be split, and the lists with them, except along the sorted dim.
FactorRule searchsorted(const OpCall& call) {
  const int sorted = call.input_index(call.has_arg("boundaries") ? "boundaries" : "sorted_sequence");
  const int values = call.input_index("self");  // -1: a number
  FactorRule rule;
  rule.inputs.resize(call.inputs.size());
  const OutputDims dims = same_dims(values < 0 ? 0 : call.inputs[values]->ndim());
  if (values >= 0) rule.inputs[values] = dims;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (static_cast<int>(i) == values || !call.inputs[i]) continue;
    rule.inputs[i].assign(call.inputs[i]->ndim(), kNoFactor);
    if (call.inputs[sorted]->ndim() < 2) continue;
    for (int64_t d = 0; d + 1 < call.inputs[i]->ndim(); ++d) rule.inputs[i][d] = static_cast<int>(d);
  }
  rule.outputs = {dims};
  return rule;
}

// ATen checks this, too, but of a rank's parts, which may fit on some ranks alone.
void check_sorted_lists(const OpCall& call) {
  const Spec* lists = call.input("sorted_sequence");
  const Spec* values = call.input("self");
  if (lists == nullptr) return;  // bucketize() has one list
  const auto batch = [](const Spec& spec) { return at::IntArrayRef(spec.sizes()).slice(0, spec.ndim() - 1); };
  const bool fits = lists->ndim() == 1 || values == nullptr ||
                    (lists->ndim() == values->ndim() && lists->ndim() > 0 && batch(*lists) == batch(*values));
  TORCH_CHECK(fits, call.name(), ": sorted_sequence should have one dim, or all sizes but the last in common with the ",
              "values, in ", call.to_string());
  const Spec* sorter = call.input("sorter");
  TORCH_CHECK(sorter == nullptr || sorter->sizes() == lists->sizes(), call.name(),
              ": sorter should have the sizes of sorted_sequence, in ", call.to_string());
}

OutputMetas searchsorted_metas(const OpCall& call) {
  check_sorted_lists(call);
  const Spec* values = call.input("self");
  std::vector<int64_t> sizes;
  if (values != nullptr) sizes.assign(values->sizes().begin(), values->sizes().end());
  return metas(sizes, call.get_bool("out_int32") ? c10::ScalarType::Int : c10::ScalarType::Long);
}

OpRule rule_of(FactorRule (*factors)(const OpCall&), OutputMetas (*metas)(const OpCall&),
               void (*local)(const LocalCall&, Stack&)) {
  OpRule rule = factor_op(factors);
  if (metas != nullptr) rule.metas = metas;
  if (local != nullptr) rule.local = local;
  return rule;
}

}  // namespace

const RuleFamily index_read_rules("index_read", [](RuleRegistry& registry) {
  const auto add = [&](const std::vector<std::string>& ops, OpRule rule) {
    takes_nothing_if_empty(rule);
    registry.add(ops, rule);
  };
  add({"aten::index_select"}, rule_of(index_select, index_select_metas, index_select_local));
  add({"aten::gather"}, rule_of(gather, nullptr, gather_local));
  add({"aten::index.Tensor", "aten::_unsafe_index.Tensor"}, rule_of(index, nullptr, index_local));
  add({"aten::take"}, rule_of(take, take_metas, nullptr));
  registry.add(
      {"aten::bucketize.Tensor", "aten::bucketize.Scalar", "aten::searchsorted.Tensor", "aten::searchsorted.Scalar"},
      rule_of(searchsorted, searchsorted_metas, nullptr));
});

}  // namespace dtensor::internal
