#include "ops/reduction/reduction.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/support/meta_tensor.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using OpNames = std::vector<std::string>;

// The dtype of a sum's or product's result.
c10::ScalarType accumulated_dtype(const OpCall& call) {
  if (call.has_arg("dtype") && !call.arg("dtype").isNone()) return call.arg("dtype").toScalarType();
  const auto own = call.inputs[0]->dtype();
  return at::isIntegralType(own, /*includeBool=*/true) ? at::kLong : own;
}

// Reducing sharded dims gives a Partial of `op`. If the operator commutes with that reduction (a count of non-zeros
// does not) a Partial input of that kind passes through.
OpRule reduce_op(ReduceOp op, bool commutes = true) {
  OpRule reduce = factor_op([op, commutes](const OpCall& call) {
    FactorRule rule = reduction(call, 0, reduced_dims(call), keeps_dims(call), op);
    if (!commutes) {
      rule.terms.clear();
      rule.passthroughs.clear();
    }
    return rule;
  });
  reduce.flops = nullptr;  // as in pointwise_op()
  return reduce;
}

// A sum of the elements that are not nan. Addends may be nan although their sum is one element, which is skipped as a
// whole, so only integers pass.
OpRule nansum() {
  OpRule of_numbers = reduce_op(ReduceOp::kSum, /*commutes=*/false), of_integers = reduce_op(ReduceOp::kSum);
  OpRule rule = of_numbers;
  rule.per_dim = [of_numbers, of_integers](const OpCall& call, int64_t mesh_dim) {
    const bool integers = c10::isIntegralType(call.inputs[0]->dtype(), /*includeBool=*/true);
    return (integers ? of_integers : of_numbers).per_dim(call, mesh_dim);
  };
  return rule;
}

// The number of input elements per result: of this rank's part, and in total. A rank without results has no part.
struct ReducedShare {
  int64_t own = 0, all = 0;
};

ReducedShare share_of(const LocalCall& call) {
  const int64_t own_results = c10::multiply_integers(call.outputs[0]->local_shape(call.i)),
                results = call.outputs[0]->meta().numel();
  if (results == 0) return {};
  const int64_t own = own_results == 0 ? 0 : c10::multiply_integers(call.inputs[0]->local_shape(call.i)) / own_results;
  return {own, call.inputs[0]->meta().numel() / results};
}

// The local mean times its share of the elements: an addend of the global mean, exact on uneven shards, and no closer
// to overflow than the mean itself.
void local_mean(const LocalCall& call, torch::jit::Stack& stack) {
  const ReducedShare share = share_of(call);
  call.op.callBoxed(stack);
  if (share.own == share.all) return;
  const at::Tensor mean = stack[0].toTensor();
  if (share.own == 0) {
    mean.zero_();
  } else {
    mean.mul_(static_cast<double>(share.own) / static_cast<double>(share.all));
  }
}

// The neutral element of a maximum (`of_max`) or minimum for the dtype.
c10::Scalar neutral(c10::ScalarType dtype, bool of_max) {
  if (at::isFloatingType(dtype)) {
    const double inf = std::numeric_limits<double>::infinity();
    return of_max ? -inf : inf;
  }
  if (dtype == at::kBool) return !of_max;
  c10::Scalar value;
  AT_DISPATCH_INTEGRAL_TYPES(dtype, "neutral", [&] {
    value = of_max ? std::numeric_limits<scalar_t>::lowest() : std::numeric_limits<scalar_t>::max();
  });
  return value;
}

// ATen rejects the maximum of an empty tensor; a rank with an empty part returns the neutral element.
template <bool kOfMax>
void local_extreme(const LocalCall& call, torch::jit::Stack& stack) {
  const at::Tensor self = stack[0].toTensor();
  const bool of_nothing = call.inputs[0]->meta().numel() == 0 && call.outputs[0]->meta().numel() > 0;
  if (self.numel() > 0 || of_nothing) return call.op.callBoxed(stack);
  const auto sizes = call.outputs[0]->local_shape(call.i);
  const bool has_out = call.op.schema().arguments().back().is_out();
  at::Tensor result = has_out ? stack.back().toTensor() : at::empty(at::IntArrayRef(sizes), self.options());
  if (result.numel() > 0) result.fill_(neutral(self.scalar_type(), kOfMax));
  stack.clear();
  stack.emplace_back(std::move(result));
}

// Smallest and largest elements: along a split dim, Partial minima and maxima.
std::vector<DimStrategy> aminmax_strategies(const OpCall& call, int64_t mesh_dim) {
  FactorRule rule = reduction(call, 0, reduced_dims(call), keeps_dims(call), ReduceOp::kMin, /*num_outputs=*/2);
  rule.passthroughs.clear();
  auto result = strategies(rule, call, mesh_dim);
  for (DimStrategy& s : result) {
    if (s.outputs[1].is_partial()) s.outputs[1] = Partial(ReduceOp::kMax);
  }
  return result;
}

void local_aminmax(const LocalCall& call, torch::jit::Stack& stack) {
  const at::Tensor self = stack[0].toTensor();
  const bool of_nothing = call.inputs[0]->meta().numel() == 0 && call.outputs[0]->meta().numel() > 0;
  if (self.numel() > 0 || of_nothing) return call.op.callBoxed(stack);
  const size_t outs = call.op.schema().arguments().back().is_out() ? stack.size() - 2 : 0;
  at::Tensor results[2];
  for (size_t k : {0, 1}) {
    const auto sizes = call.outputs[k]->local_shape(call.i);
    results[k] = outs > 0 ? stack[outs + k].toTensor() : at::empty(at::IntArrayRef(sizes), self.options());
    if (results[k].numel() > 0) results[k].fill_(neutral(self.scalar_type(), /*of_max=*/k == 1));
  }
  stack.clear();
  for (at::Tensor& t : results) stack.emplace_back(std::move(t));
}

// ATen's own kernel computes |x|^p first; the norm is one pass without temporaries. Negative norms of nothing are
// undefined, sums of no powers are 0.
void local_powsum(const LocalCall& call, torch::jit::Stack& stack) {
  const auto dims = stack[2].isNone() ? std::nullopt : std::optional(stack[2].toIntVector());
  const c10::Scalar p = stack[1].toScalar();
  at::Tensor self = stack[0].toTensor();
  if (self.is_complex() && !stack[4].isNone() && at::isFloatingType(stack[4].toScalarType())) {
    // ATen takes the absolute values of complex numbers for some orders, and the real parts for others.
    stack[0] = self = self.to(c10::toComplexType(stack[4].toScalarType()));
    stack[4] = c10::IValue();
  }
  const bool has_norm = p.toDouble() > 0 && !std::isinf(p.toDouble()) && stack[4].isNone() &&
                        !c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  if (!has_norm) return call.op.callBoxed(stack);
  const at::OptionalIntArrayRef reduced = dims ? at::OptionalIntArrayRef(*dims) : std::nullopt;
  at::Tensor norm = at::linalg_vector_norm(self, p, reduced, stack[3].toBool());
  stack.clear();
  stack.emplace_back(norm.pow_(p));
}

template <bool kOfMax>
OpRule extreme() {
  OpRule rule = reduce_op(kOfMax ? ReduceOp::kMax : ReduceOp::kMin);
  rule.local = local_extreme<kOfMax>;
  return rule;
}

OutputMetas as_accumulated(const OpCall& call) { return reduction_metas(call, {accumulated_dtype(call)}); }
OutputMetas as_real(const OpCall& call) {
  return reduction_metas(call, {c10::toRealValueType(accumulated_dtype(call))});
}
OutputMetas as_count(const OpCall& call) { return reduction_metas(call, {at::kLong}); }

}  // namespace

std::vector<int64_t> reduced_dims(const OpCall& call) {
  const int64_t ndim = call.inputs[0]->ndim();
  std::vector<int64_t> dims;
  if (call.has_arg("dim") && !call.arg("dim").isNone()) {
    const auto& dim = call.arg("dim");
    TORCH_CHECK_NOT_IMPLEMENTED(dim.isInt() || dim.isIntList() || (dim.isList() && dim.toListRef().empty()),
                                call.name(), ": names of dims are not supported on distributed tensors");
    for (int64_t d :
         dim.isInt() ? std::vector<int64_t>{dim.toInt()} : call.get_ints("dim").value_or(std::vector<int64_t>{})) {
      dims.push_back(wrap_dim(d, ndim));
    }
    const auto& name = call.op.operator_name();
    // all(x, dim=[]) and any(x, dim=[]) reduce nothing; for other operators an empty list means all dims.
    const bool none = dims.empty() && name.overload_name.rfind("dims", 0) == 0;
    if (!dims.empty() || none) {
      std::sort(dims.begin(), dims.end());
      dims.erase(std::remove_if(dims.begin(), dims.end(), [&](int64_t d) { return d >= ndim; }), dims.end());
      return dims;
    }
  }
  for (int64_t d = 0; d < ndim; ++d) dims.push_back(d);
  return dims;
}

bool keeps_dims(const OpCall& call) { return call.has_arg("keepdim") && call.get_bool("keepdim"); }

OutputMetas reduction_metas(const OpCall& call, const std::vector<c10::ScalarType>& dtypes) {
  const auto dims = reduced_dims(call);
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < call.inputs[0]->ndim(); ++d) {
    if (!std::binary_search(dims.begin(), dims.end(), d)) {
      sizes.push_back(call.inputs[0]->sizes()[d]);
    } else if (keeps_dims(call)) {
      sizes.push_back(1);
    }
  }
  return contiguous_metas(sizes, dtypes);
}

OutputMetas as_input(const OpCall& call) { return reduction_metas(call, {call.inputs[0]->dtype()}); }

const RuleFamily reduction_rules("reduction", [](RuleRegistry& registry) {
  const auto add = [&](const OpNames& ops, OpRule rule, OutputMetas (*metas)(const OpCall&) = nullptr,
                       void (*local)(const LocalCall&, torch::jit::Stack&) = nullptr) {
    if (metas) rule.metas = metas;
    if (local) rule.local = local;
    registry.add(ops, rule);
  };
  add(OpNames{"aten::sum", "aten::sum.dim_IntList"}, reduce_op(ReduceOp::kSum));
  OpRule mean = reduce_op(ReduceOp::kSum);
  mean.local = local_mean;
  mean.local_calls_operator = true;  // where a rank has all elements of its results
  add(OpNames{"aten::mean", "aten::mean.dim"}, std::move(mean));
  add({"aten::nansum"}, nansum(), as_accumulated);
  add(OpNames{"aten::prod", "aten::prod.dim_int"}, reduce_op(ReduceOp::kProduct), as_accumulated);
  add(OpNames{"aten::count_nonzero", "aten::count_nonzero.dim_IntList"}, reduce_op(ReduceOp::kSum, /*commutes=*/false),
      as_count);
  add({"aten::linalg__powsum"}, reduce_op(ReduceOp::kSum, /*commutes=*/false), as_real, local_powsum);
  add(OpNames{"aten::all", "aten::all.dim", "aten::all.dims"}, reduce_op(ReduceOp::kMin));
  add(OpNames{"aten::any", "aten::any.dim", "aten::any.dims"}, reduce_op(ReduceOp::kMax));
  add({"aten::max"}, extreme<true>(), as_input);
  add({"aten::min"}, extreme<false>(), as_input);
  add({"aten::amax"}, extreme<true>());
  OpRule both;
  both.per_dim = aminmax_strategies;
  both.local = local_aminmax;
  add(OpNames{"aten::aminmax", "aten::_aminmax"}, std::move(both));
  add({"aten::amin"}, extreme<false>());
});

}  // namespace dtensor::internal
