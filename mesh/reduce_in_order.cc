#include "mesh/reduce_in_order.h"

#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

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

}  // namespace

void reduce_in_order(const at::Tensor& out, size_t count, ReduceOp op, const std::function<at::Tensor(size_t)>& addend) {
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
