// Vector norms: every rank adds up powers of its part, one all-reduce of the sums follows, then the root. The tensor
// itself is never gathered, so clip_grad_norm_ costs one collective of one number per sharded gradient.
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

#include <cmath>

#include "dtensor/extend/op_info.h"
#include "dtensor/extend/out_tensor.h"
#include "ops/reduction.h"
#include "propagation/rule_registry.h"

namespace dtensor {
namespace {

c10::ScalarType norm_dtype(const at::Tensor& self, std::optional<c10::ScalarType> dtype) {
  return c10::toRealValueType(dtype.value_or(self.scalar_type()));
}

// Is each result made of no elements?
bool reduces_nothing(const at::Tensor& t, at::OptionalIntArrayRef dims) {
  if (!dims) return t.numel() == 0;
  for (int64_t d : *dims) {
    if (t.size(d) == 0) return true;
  }
  return false;
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
  // Sums of half-precision powers overflow where the norm would not.
  const bool half = result_dtype == at::kHalf || result_dtype == at::kBFloat16;
  const auto accumulate = half ? at::kFloat : result_dtype;
  const auto widened = at::isComplexType(self.scalar_type()) ? at::kComplexFloat : at::kFloat;
  at::Tensor result;
  if (p == 0) {
    result = at::sum(self.ne(0), dims, keepdim, accumulate);
  } else {
    result = at::linalg__powsum(half ? self.to(widened) : self, p, dims, keepdim);
    if (p == 2) {
      result = at::sqrt(result);
    } else if (p != 1) {
      result = at::pow(result, 1 / p);
    }
  }
  return half ? result.to(result_dtype) : result;
}

// All forms of norm and linalg_vector_norm, told apart by the names of their arguments.
void norm(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
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
  registry.add_handler("aten::norm", norm);
  registry.add_handler("aten::linalg_vector_norm", norm);
  registry.add_handler("aten::dist", dist);
});

}  // namespace dtensor
