// Vector norms: every rank adds up powers of its part, then the ranks add up the sums and take the root. The tensor
// itself is never gathered.
#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/linalg__powsum.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/reduction.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

c10::ScalarType norm_dtype(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  return c10::toRealValueType(dtype.value_or(self.scalar_type()));
}

// Whether each result is a norm of no elements. A scalar has one, and dim 0 without having a size there.
bool reduces_nothing(const at::Tensor& t, at::OptionalIntArrayRef dims) {
  if (!dims || t.dim() == 0) return t.numel() == 0;
  for (int64_t d : *dims) {
    if (t.size(d) == 0) return true;
  }
  return false;
}

// ---- Norms of parts, Partial(kNorm2): roots whose squares are added up in the reduction. So a norm of norms, as in
// clip_grad_norm_, costs one collective, however many they are.

Placements with_op(Placements placements, ReduceOp from, ReduceOp to) {
  for (Placement& p : placements) {
    if (p.is_partial() && p.reduce_op() == from) p = Partial(to);
  }
  return placements;
}

bool is_norm_of_parts(const at::Tensor& t) {
  const Placements& placements = spec_of(t)->placements();
  return std::any_of(placements.begin(), placements.end(),
                     [](const Placement& p) { return p.is_partial() && p.reduce_op() == ReduceOp::kNorm2; });
}

// `t` with other local values and another kind of Partial.
at::Tensor mapped(const at::Tensor& t, ReduceOp from, ReduceOp to, at::Tensor (*map)(const at::Tensor&)) {
  const DTensorMeta& meta = meta_for_read(t);
  RankTensors locals = meta.locals;
  LocalGuard guard;
  for (at::Tensor& local : locals) local = map(local);
  return make_result(meta.spec->with_placements(with_op(meta.spec->placements(), from, to)), std::move(locals));
}

at::Tensor squares_of_addends(const at::Tensor& t) {
  return mapped(t, ReduceOp::kNorm2, ReduceOp::kSum, [](const at::Tensor& x) { return x * x; });
}

// The roots of sums of squares.
at::Tensor norms_of_parts(const at::Tensor& sums) {
  return spec_of(sums)->has_partial() ? mapped(sums, ReduceOp::kSum, ReduceOp::kNorm2, at::sqrt) : at::sqrt(sums);
}

at::Tensor vector_norm(const at::Tensor& given, double p, at::OptionalIntArrayRef dims, bool keepdim,
                       std::optional<c10::ScalarType> dtype) {
  TORCH_CHECK(at::isFloatingType(given.scalar_type()) || at::isComplexType(given.scalar_type()),
              "linalg.vector_norm: Expected a floating point or complex tensor as input. Got ", given.scalar_type());
  const at::Tensor self = dtype ? given.to(*dtype) : given;
  const auto result_dtype = norm_dtype(given, dtype);
  if (std::isinf(p)) {
    const at::IntArrayRef reduced = dims.value_or(at::IntArrayRef{});
    return p > 0 ? at::amax(self.abs(), reduced, keepdim) : at::amin(self.abs(), reduced, keepdim);
  }
  TORCH_CHECK(p >= 0 || !reduces_nothing(given, dims), "linalg.vector_norm cannot compute the ", p,
              " norm on an empty tensor because the operation does not have an identity");
  // Sums of half-precision powers may overflow although the norm does not.
  const bool half = result_dtype == at::kHalf || result_dtype == at::kBFloat16;
  const auto accumulate = half ? at::kFloat : result_dtype;
  const auto widened = at::isComplexType(self.scalar_type()) ? at::kComplexFloat : at::kFloat;
  at::Tensor result;
  if (p == 0) {
    result = at::sum(self.ne(0), dims, keepdim, accumulate);
  } else {
    const at::Tensor x = half ? self.to(widened) : self;
    result = p == 2 && is_norm_of_parts(x) ? at::sum(squares_of_addends(x), dims, keepdim)
                                           : at::linalg__powsum(x, p, dims, keepdim);
    if (p == 2) {
      result = half ? at::sqrt(result) : norms_of_parts(result);
    } else if (p != 1) {
      result = at::pow(result, 1 / p);
    }
  }
  return half ? result.to(result_dtype) : result;
}

// Whether a rule has the call: the norm of each part is an addend of the norm, and its squares neither overflow nor
// have another dtype. This follows from what the key of a decision has, as a typed kernel asks for a decision alone.
bool has_rule(const Arguments& args) {
  const c10::IValue& order = args[args["p"].isNone() ? "ord" : "p"];
  if (args.out().defined() || !order.isScalar() || !order.toScalar().equal(2) || !args["dtype"].isNone()) return false;
  const auto dtype = c10::toRealValueType(args.tensor("self").scalar_type());
  return dtype == at::kFloat || dtype == at::kDouble;
}

// The norm of each part, Partial(kNorm2) where the parts are of one norm.
OpRule norm_of_each_part() {
  OpRule rule = factor_op(
      [](const OpCall& call) { return reduction(call, 0, reduced_dims(call), keeps_dims(call), ReduceOp::kNorm2); });
  rule.metas = [](const OpCall& call) {
    return reduction_metas(call, {c10::toRealValueType(call.inputs[0]->dtype())});
  };
  return rule;
}

// All forms of norm and linalg_vector_norm, distinguished by the names of their arguments.
void norm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (RuleRegistry::instance().find(op) && has_rule(Arguments(op, stack))) return dispatch_by_rule(op, stack);
  const auto& arguments = op.schema().arguments();
  const size_t base = stack.size() - arguments.size();
  at::Tensor self, out;
  double p = 2;
  std::optional<std::vector<int64_t>> dims;
  bool keepdim = false;
  std::optional<c10::ScalarType> dtype;
  for (size_t a = 0; a < arguments.size(); ++a) {
    const auto& name = arguments[a].name();
    const auto& value = stack[base + a];
    if (name == "self") self = value.toTensor();
    if (arguments[a].is_out()) out = value.toTensor();
    if (value.isNone()) continue;
    if (name == "p" || name == "ord") p = value.toScalar().toDouble();
    if (name == "keepdim") keepdim = value.toBool();
    if (name == "dtype") dtype = value.toScalarType();
    if (name == "dim") {
      TORCH_CHECK_NOT_IMPLEMENTED(value.isInt() || value.isIntList(), op.operator_name(),
                                  ": names of dims are not supported on distributed tensors");
      dims = value.isInt() ? std::vector<int64_t>{value.toInt()} : value.toIntVector();
    }
  }
  at::OptionalIntArrayRef reduced;
  if (dims && !dims->empty()) reduced = at::IntArrayRef(*dims);
  at::Tensor result = vector_norm(self, p, reduced, keepdim, dtype);
  torch::jit::drop(stack, arguments.size());
  stack.emplace_back(write_out(out, result, op));
}

void dist(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::Tensor out;
  if (op.schema().arguments().back().is_out()) out = torch::jit::pop(stack).toTensor();
  const double p = torch::jit::pop(stack).toScalar().toDouble();
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  const at::Tensor result = at::linalg_vector_norm(at::sub(self, other), p);
  stack.emplace_back(write_out(out, result, op));
}

}  // namespace

const RuleFamily norm_handlers("norm", [](RuleRegistry& registry) {
  registry.add(std::vector<std::string>{"aten::norm.Scalar", "aten::linalg_vector_norm"}, norm_of_each_part());
  registry.add_handler("aten::norm", norm);
  registry.add_handler("aten::linalg_vector_norm", norm);
  registry.add_handler("aten::dist", dist);
});

}  // namespace dtensor::internal
