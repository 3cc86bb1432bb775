// Sums over elements by bin or on a diagonal: each rank counts its own elements, and the counts are Partial. And
// membership in a set.
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
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

// Every dim of the first input may be split; the other inputs are split alike.
FactorRule count(const OpCall& call, int64_t output_dims) {
  FactorRule rule = pointwise(call);
  for (const int factor : rule.outputs[0]) rule.contractions.push_back({factor, ReduceOp::kSum});
  rule.outputs[0].assign(static_cast<size_t>(output_dims), kNoFactor);
  return rule;
}

// The count of an empty part is zero; some kernels give another dtype then.
void count_local(const LocalCall& local, Stack& stack) {
  const size_t base = stack.size() - local.op.schema().arguments().size();
  const at::Tensor self = stack[base].toTensor();
  if (self.numel() > 0 || local.op.schema().arguments().back().is_out()) return local.op.callBoxed(stack);
  stack.resize(base);
  const Spec& result = *local.outputs[0];
  stack.emplace_back(self.new_zeros(result.local_shape(local.i), self.options().dtype(result.dtype())));
}

// ------------------------------------------------------------ histc, bincount

// histc(self, bins, min, max): uses the range of the elements if min equals max.
void histc(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  at::Tensor self = args.tensor("self");
  if (self.numel() > 0 && self.is_floating_point() && args.number("min") == args.number("max")) {
    const at::Tensor range = plain_range(self, 0, op);
    LocalGuard guard;
    args.set("min", range[0][0].item());
    args.set("max", range[0][1].item());
    args.set("self", self);
  }
  dispatch_by_rule(op, stack);
}

OutputMetas histc_metas(const OpCall& call) {
  return contiguous_metas({call.get_int("bins")}, {call.input("self")->dtype()});
}

// bincount(self, weights?, minlength): the largest element determines the number of bins.
void bincount(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  at::Tensor self = args.tensor("self");
  TORCH_CHECK(self.dim() == 1 && c10::isIntegralType(self.scalar_type(), /*includeBool=*/false),
              "bincount only supports 1-d non-negative integral inputs.");
  const int64_t least = args["minlength"].toInt();
  TORCH_CHECK(least >= 0, "minlength should be >= 0");
  if (self.numel() > 0) {
    const at::Tensor range = plain_range(self, 0, op);
    LocalGuard guard;
    TORCH_CHECK(range[0][0].item<int64_t>() >= 0, "bincount only supports 1-d non-negative integral inputs.");
    args.set("minlength", std::max(least, range[0][1].item<int64_t>() + 1));
    args.set("self", self);
  }
  dispatch_by_rule(op, stack);
}

FactorRule bincount_rule(const OpCall& call) {
  const Spec *self = call.input("self"), *weights = call.input("weights");
  TORCH_CHECK(weights == nullptr || weights->sizes() == self->sizes(),
              "bincount: weights should be 1-d and have the same length as input, in ", call.to_string());
  FactorRule rule = count(call, 1);
  if (weights != nullptr) rule.terms = {{1}};
  return rule;
}

OutputMetas bincount_metas(const OpCall& call) {
  const Spec* weights = call.input("weights");
  const auto dtype = weights == nullptr ? at::kLong : weights->dtype() == at::kFloat ? at::kFloat : at::kDouble;
  return contiguous_metas({call.get_int("minlength")}, {dtype});
}

// ------------------------------------------------------------ trace

OpRule trace_rule() {
  OpRule rule;
  rule.per_dim = [](const OpCall& call, int64_t) {
    TORCH_CHECK(call.input("self")->ndim() == 2, "trace: expected a matrix, but got ", call.to_string());
    FactorRule factors = count(call, 0);
    factors.terms = {{0}};
    return strategies(factors, call);  // interleaved rows do not have a single diagonal
  };
  rule.metas = [](const OpCall& call) {
    const auto dtype = call.input("self")->dtype();
    return contiguous_metas({}, {c10::isIntegralType(dtype, /*includeBool=*/true) ? at::kLong : dtype});
  };
  // For a part that begins at row r and column c: its diagonal with offset r - c.
  rule.local = [](const LocalCall& local, Stack& stack) {
    const at::Tensor self = stack.front().toTensor();
    const LocalLayout part = local.inputs[0]->local_layout(local.i);
    const auto begin = [&](size_t d) { return part.dims[d].empty() ? 0 : part.dims[d][0].begin; };
    const at::Tensor sum = self.diagonal(begin(0) - begin(1)).sum().to(local.outputs[0]->dtype());
    if (!local.op.schema().arguments().back().is_out()) {
      stack = {sum};
    } else {
      stack = {stack.back().toTensor().copy_(sum)};
    }
  };
  return rule;
}

// ------------------------------------------------------------ isin

// The set is whole, the elements may be split.
FactorRule isin_rule(const OpCall& call) {
  const int elements = call.input_index("elements");
  FactorRule rule;
  for (const auto& input : call.inputs) rule.inputs.emplace_back(input->ndim(), kNoFactor);
  rule.outputs.emplace_back();
  if (elements < 0) return rule;
  auto& dims = rule.inputs[static_cast<size_t>(elements)];
  std::iota(dims.begin(), dims.end(), 0);
  rule.outputs[0] = dims;
  return rule;
}

// If the set is sharded, each rank tests its own part: whether an element is in any part, or in none, is the maximum or
// minimum of the ranks' results. The result stays Partial if computing this costs no more than gathering the set.
std::vector<DimStrategy> isin_strategies(const OpCall& call, int64_t mesh_dim) {
  auto result = strategies(isin_rule(call), call, mesh_dim);
  const int elements = call.input_index("elements"), set = call.input_index("test_elements");
  if (mesh_dim < 0 || set < 0 || !call.inputs[set]->placements()[mesh_dim].is_sharded()) return result;
  const int64_t found = elements < 0 ? 1 : call.inputs[elements]->meta().numel();
  if (2 * found > call.inputs[set]->meta().bytes()) return result;
  DimStrategy s{{Partial(call.get_bool("invert") ? ReduceOp::kMin : ReduceOp::kMax)}, Placements(call.inputs.size())};
  s.inputs[set] = call.inputs[set]->placements()[mesh_dim];
  result.push_back(std::move(s));
  return result;
}

// ATen's meta kernel returns one dim for a scalar.
OutputMetas isin_metas(const OpCall& call) {
  const Spec* elements = call.input("elements");
  return contiguous_metas(elements != nullptr ? at::IntArrayRef(elements->sizes()) : at::IntArrayRef(), {at::kBool});
}

}  // namespace

const RuleFamily counting_rules("counting", [](RuleRegistry& registry) {
  OpRule histogram = factor_op([](const OpCall& call) { return count(call, 1); });
  histogram.metas = histc_metas;
  histogram.local = count_local;
  registry.add("aten::histc", histogram);
  registry.add_handler("aten::histc", histc);
  OpRule counts = factor_op(bincount_rule);
  counts.metas = bincount_metas;
  counts.local = count_local;
  registry.add("aten::bincount", counts);
  registry.add_handler("aten::bincount", bincount);
  registry.add("aten::trace", trace_rule());
  OpRule membership;
  membership.per_dim = isin_strategies;
  membership.metas = isin_metas;
  registry.add("aten::isin", std::move(membership));
});

}  // namespace dtensor::internal
