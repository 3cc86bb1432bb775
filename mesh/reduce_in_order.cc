#include "mesh/reduce_in_order.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <limits>
#include <optional>

namespace dtensor {
namespace {

void reduce_next(at::Tensor out, const at::Tensor& addend, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      out.add_(addend);
      break;
    case ReduceOp::kProduct:
      out.mul_(addend);
      break;
    case ReduceOp::kMin:
      at::minimum_out(out, out, addend);
      break;
    case ReduceOp::kMax:
      at::maximum_out(out, out, addend);
      break;
  }
}

// ATen has no arithmetic for the larger unsigned integers. As signed ones, sums and products have the same bits; with
// the first bit turned over, the order is the same, too.
struct SignedForm {
  at::ScalarType dtype;
  int64_t first_bit;
};
std::optional<SignedForm> signed_form(at::ScalarType dtype) {
  if (dtype == at::kUInt16) return SignedForm{at::kShort, std::numeric_limits<int16_t>::min()};
  if (dtype == at::kUInt32) return SignedForm{at::kInt, std::numeric_limits<int32_t>::min()};
  if (dtype == at::kUInt64) return SignedForm{at::kLong, std::numeric_limits<int64_t>::min()};
  return std::nullopt;
}

}  // namespace

void reduce_in_order(const at::Tensor& out, size_t count, ReduceOp op,
                     const std::function<at::Tensor(size_t)>& addend) {
  if (const auto form = signed_form(out.scalar_type())) {
    const at::Tensor as_signed = out.view(form->dtype);
    if (op != ReduceOp::kMin && op != ReduceOp::kMax) {
      return reduce_in_order(as_signed, count, op, [&](size_t i) { return addend(i).view(form->dtype); });
    }
    reduce_in_order(as_signed, count, op,
                    [&](size_t i) { return addend(i).view(form->dtype).bitwise_xor(form->first_bit); });
    as_signed.bitwise_xor_(form->first_bit);
    return;
  }
  const bool half = c10::isReducedFloatingType(out.scalar_type());
  const auto dtype = half ? at::kFloat : out.scalar_type();
  at::Tensor sum = out;
  if (half) {
    sum = addend(0).to(out.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
  } else {
    out.copy_(addend(0));
  }
  for (size_t i = 1; i < count; ++i) reduce_next(sum, addend(i).to(out.device(), dtype), op);
  if (op == ReduceOp::kAvg) sum.div_(static_cast<int64_t>(count));
  if (half) out.copy_(sum);
}

}  // namespace dtensor
