// Writes by index: index_put, index_add, index_copy, index_fill, scatter and the like. If the indexed dim of the
// written tensor is sharded, every rank writes the values that fall into its part; the others go to one extra row,
// which is then cut off. So the written tensor may have any layout, in place too, and is not communicated.
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "ops/indexing/advanced_index.h"
#include "ops/indexing/local_index.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/movement.h"
#include "propagation/functional_form.h"
#include "propagation/rule_registry.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The operator that writes into its first argument: aten::scatter_.src for aten::scatter.src and aten::scatter.src_out.
c10::OperatorHandle in_place_form(const c10::OperatorHandle& op) {
  std::string name = op.schema().name(), overload = op.schema().overload_name();
  if (!absl::EndsWith(name, "_")) name += "_";
  if (overload == "out") overload.clear();
  overload = std::string(absl::StripSuffix(overload, "_out"));
  if (name == "aten::_unsafe_index_put_") name = "aten::index_put_";
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
}

// `self` with one extra row on each of `dims`, for values that belong to other ranks.
at::Tensor with_spare_rows(const at::Tensor& self, const std::vector<int64_t>& dims) {
  std::vector<int64_t> pad(2 * self.dim(), 0);
  for (int64_t d : dims) pad[2 * (self.dim() - 1 - d) + 1] = 1;
  return at::constant_pad_nd(self, pad, 0);
}

// Runs the call on `self` with spare rows and stores the result as the call requires. `stack`: the local arguments,
// with indices that count the spare rows.
void write_with_spare_rows(const LocalCall& call, Stack& stack, const std::vector<int64_t>& dims) {
  const at::Tensor self = stack[0].toTensor();
  const auto writer = in_place_form(call.op);
  Stack local(stack.begin(), stack.begin() + static_cast<int64_t>(writer.schema().arguments().size()));
  at::Tensor result = with_spare_rows(self, dims);
  local[0] = result;
  writer.callBoxed(local);
  for (int64_t d : dims) result = result.narrow(d, 0, self.size(d));
  leave_result(call, stack, result.contiguous());
}

// ------------------------------------------------------------ index_put

FactorRule index_put(const OpCall& call) {
  const AdvancedIndex layout(call);
  const int values = call.input_index("values");
  const int64_t ndim = call.inputs[0]->ndim();
  FactorRule rule;
  rule.inputs = layout.input_factors();
  rule.outputs = {rule.inputs[0]};
  // Values are broadcast to the shape of the indexed read.
  const OutputDims read = layout.result_factors();
  const Shape& sizes = call.inputs[values]->sizes();
  OutputDims dims(sizes.size(), kNoFactor);
  const int64_t missing = static_cast<int64_t>(read.size()) - static_cast<int64_t>(sizes.size());
  for (size_t j = 0; j < sizes.size(); ++j) {
    if (missing + static_cast<int64_t>(j) >= 0 && sizes[j] != 1) dims[j] = read[missing + j];
  }
  rule.inputs.push_back(dims);
  // A dim along which the values are broadcast: each rank uses its own values, which a sharded self allows.
  if (call.get_bool("accumulate")) {
    rule.terms = {{0}, {values}};
    for (int factor : dims) {
      if (factor >= ndim) rule.contractions.push_back({factor, ReduceOp::kSum});
    }
  }
  return rule;
}

void index_put_local(const LocalCall& call, Stack& stack) {
  const LocalIndices parts = localize_indices(call, stack, /*writing=*/true);
  if (parts.partial_dims.empty()) return call.op.callBoxed(stack);
  stack[1] = parts.indices;
  write_with_spare_rows(call, stack, parts.partial_dims);
}

// ------------------------------------------------------------ index_add, index_copy, index_fill, index_reduce

// One index list along one dim; the source, if there is one, has the shape of self except for that dim.
FactorRule index_rows(const OpCall& call) {
  const Spec &self = *call.inputs[0], &index = *call.inputs[1];
  FactorRule rule;
  const OutputDims dims = same_dims(self.ndim());
  rule.inputs = {dims, OutputDims(index.ndim(), kNoFactor)};
  rule.outputs = {dims};
  if (call.inputs.size() == 3) rule.inputs.emplace_back(call.inputs[2]->ndim(), kNoFactor);
  if (!call.has_arg("source")) return rule;
  const bool adds = call.op.schema().name() == "aten::index_add" || call.op.schema().name() == "aten::index_add_";
  if (adds) rule.terms = {{0}, {2}};
  const Spec& source = *call.inputs[2];
  if (source.ndim() != self.ndim() || index.ndim() != 1 || self.ndim() == 0) return rule;
  rule.inputs[2] = dims;
  const int rows = static_cast<int>(self.ndim());
  rule.inputs[1] = {rows};
  rule.inputs[2][wrap_dim(call.get_int("dim"), self.ndim())] = rows;
  if (adds) rule.contractions = {{rows, ReduceOp::kSum}};
  return rule;
}

void index_rows_local(const LocalCall& call, Stack& stack) {
  const Spec& self = *call.inputs[0];
  if (self.ndim() == 0) return call.op.callBoxed(stack);
  if (self.meta().numel() == 0) return leave_result(call, stack, stack[0].toTensor().clone());  // for any indices
  const int64_t dim = wrap_dim(stack[1].toInt(), self.ndim()), size = self.sizes()[dim];
  const IndexRanges runs = self.local_layout(call.i).dims[dim];
  if (holds_all(runs, size)) return call.op.callBoxed(stack);
  at::Tensor index = stack[2].toTensor();
  const bool negative = absl::StrContains(call.op.schema().name(), "index_fill");
  check_range(index, negative ? -size : 0, size, dim);
  if (negative) index = index.remainder(size);
  stack[2] = localize(index, runs, /*otherwise=*/total_size(runs)).index;
  write_with_spare_rows(call, stack, {dim});
}

// ------------------------------------------------------------ scatter

// Whether dim d has the same length in self, index and src.
bool aligned(const OpCall& call, int64_t d) {
  for (const SpecPtr& s : call.inputs) {
    if (s->ndim() != call.inputs[0]->ndim() || s->sizes()[d] != call.inputs[0]->sizes()[d]) return false;
  }
  return true;
}

bool is_scatter_add(const OpCall& call) { return absl::StartsWith(call.op.schema().name(), "aten::scatter_add"); }

FactorRule scatter(const OpCall& call) {
  const Spec& self = *call.inputs[0];
  FactorRule rule;
  const OutputDims dims = same_dims(self.ndim());
  for (const SpecPtr& s : call.inputs) rule.inputs.emplace_back(s->ndim(), kNoFactor);
  rule.inputs[0] = dims;
  rule.outputs = {dims};
  if (is_scatter_add(call)) rule.terms = {{0}, {2}};
  if (self.ndim() == 0) return rule;
  const int64_t dim = wrap_dim(call.get_int("dim"), self.ndim());
  for (size_t i = 1; i < call.inputs.size(); ++i) {
    for (int d : dims) {
      if (d != dim && aligned(call, d)) rule.inputs[i][d] = d;
    }
  }
  // Every rank adds its own part of a list: together they are the sum.
  if (is_scatter_add(call) && call.inputs[1]->ndim() == self.ndim() &&
      call.inputs[1]->sizes() == call.inputs[2]->sizes()) {
    const int rows = static_cast<int>(self.ndim());
    rule.inputs[1][dim] = rule.inputs[2][dim] = rows;
    rule.contractions = {{rows, ReduceOp::kSum}};
  }
  return rule;
}

void scatter_local(const LocalCall& call, Stack& stack) {
  const Spec& self = *call.inputs[0];
  at::Tensor index = stack[2].toTensor();
  if (self.ndim() == 0 || index.dim() != self.ndim()) return call.op.callBoxed(stack);
  const int64_t dim = wrap_dim(stack[1].toInt(), self.ndim()), size = self.sizes()[dim];
  const LocalLayout layout = self.local_layout(call.i);
  // Dims that are cut in self alone: for the other arguments, the range next to this rank's part.
  const bool has_source = stack[3].isTensor() && stack[3].toTensor().dim() == self.ndim();
  for (int64_t d = 0; d < self.ndim(); ++d) {
    if (d == dim || holds_all(layout.dims[d], self.sizes()[d])) continue;
    if (call.inputs[1]->local_shape(call.i)[d] != call.inputs[1]->sizes()[d]) continue;  // cut likewise
    IndexRanges runs;
    for (const IndexRange& run : layout.dims[d]) {
      const int64_t end = std::min(run.begin + run.size, index.size(d));
      if (end > run.begin) runs.push_back({run.begin, end - run.begin});
    }
    index = take_runs(index, d, runs);
    if (has_source) stack[3] = take_runs(stack[3].toTensor(), d, runs);
  }
  stack[2] = index;
  const IndexRanges& runs = layout.dims[dim];
  if (holds_all(runs, size)) return call.op.callBoxed(stack);
  check_range(index, 0, size, dim);
  stack[2] = localize(index, runs, /*otherwise=*/total_size(runs)).index;
  write_with_spare_rows(call, stack, {dim});
}

// ATen's meta kernel of index_add fails on an empty index, and on an empty tensor. That of index_fill reads the value,
// if it is a tensor. The results are row-major, except for index_fill(), which clones.
OutputMetas index_rows_metas(const OpCall& call) {
  if (call.inputs[1]->meta().numel() > 0 && call.inputs[0]->meta().numel() > 0) {
    if (auto metas = run_meta(as_runnable(call))) return *std::move(metas);
  }
  const at::Tensor self = meta_tensor(*call.inputs[0]);
  if (absl::StrContains(call.name(), "index_fill")) return metas_of({at::empty_like(self)});
  return contiguous_metas(self.sizes(), {self.scalar_type()});
}

OpRule rule_of(FactorRule (*factors)(const OpCall&), void (*local)(const LocalCall&, Stack&)) {
  OpRule rule = factor_op(factors);
  rule.local = local;
  return rule;
}

}  // namespace

const RuleFamily index_write_rules("index_write", [](RuleRegistry& registry) {
  registry.add({"aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put"},
               rule_of(index_put, index_put_local));
  OpRule rows = rule_of(index_rows, index_rows_local);
  rows.metas = index_rows_metas;
  registry.add({"aten::index_add", "aten::index_copy", "aten::index_fill", "aten::index_reduce"}, rows);
  registry.add({"aten::scatter", "aten::scatter_add", "aten::scatter_reduce"}, rule_of(scatter, scatter_local));
  for (const char* op : {"aten::put", "aten::masked_scatter"}) {
    registry.add(op, factor_op([](const OpCall& call) {  // treats the tensor as a flat list: whole
                   FactorRule rule;
                   for (const SpecPtr& s : call.inputs) rule.inputs.emplace_back(s->ndim(), kNoFactor);
                   // Without indices it is copied.
                   const bool is_empty = call.has_arg("index") && call.input("index")->meta().numel() == 0;
                   if (is_empty) rule.inputs[0] = same_dims(call.inputs[0]->ndim());
                   rule.outputs = {rule.inputs[0]};
                   return rule;
                 }));
  }
});

}  // namespace dtensor::internal
