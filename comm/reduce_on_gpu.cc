#include "comm/reduce_on_gpu.h"

#ifdef DTENSOR_HAVE_CUDA
#include <algorithm>
#include <optional>

#include "comm/cuda/reduce.h"
#include "comm/cuda/run_on_cuda.h"
#endif

namespace dtensor::internal {

#ifdef DTENSOR_HAVE_CUDA
namespace {

// nullopt for what is left to ATen.
std::optional<cuda::ReducedType> type_on_gpu(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return cuda::ReducedType::kHalf;
    case at::kBFloat16:
      return cuda::ReducedType::kBFloat16;
    case at::kFloat:
      return cuda::ReducedType::kFloat;
    case at::kDouble:
      return cuda::ReducedType::kDouble;
    case at::kInt:
      return cuda::ReducedType::kInt;
    case at::kLong:
      return cuda::ReducedType::kLong;
    default:
      return std::nullopt;
  }
}

std::optional<cuda::Reduction> reduction_on_gpu(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return cuda::Reduction::kSum;
    case ReduceOp::kProduct:
      return cuda::Reduction::kProduct;
    case ReduceOp::kMin:
      return cuda::Reduction::kMin;
    case ReduceOp::kMax:
      return cuda::Reduction::kMax;
    case ReduceOp::kNorm2:  // plans add up squares
      break;
  }
  return std::nullopt;
}

}  // namespace

bool reduce_on_gpu(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, ReduceOp op) {
  const at::Device device = outputs[0].device();
  const auto type = type_on_gpu(outputs[0].scalar_type());
  const auto reduction = reduction_on_gpu(op);
  const auto fits = [&](const at::Tensor& t) {
    return t.device() == device && t.layout() == at::kStrided && t.is_contiguous() && !t.is_neg() &&
           !t._is_zerotensor();
  };
  if (!device.is_cuda() || !type || !reduction || std::max(outputs.size(), addends.size()) > cuda::kMostReduced ||
      !std::all_of(outputs.begin(), outputs.end(), fits) || !std::all_of(addends.begin(), addends.end(), fits))
    return false;
  cuda::Reduced reduced;
  for (const at::Tensor& t : addends) reduced.addends[reduced.num_addends++] = t.const_data_ptr();
  for (const at::Tensor& t : outputs) reduced.outputs[reduced.num_outputs++] = t.mutable_data_ptr();
  reduced.numel = outputs[0].numel();
  reduced.type = *type;
  reduced.reduction = *reduction;
  reduced.average = op == ReduceOp::kAvg;
  run_on_cuda("reduce", device, [&](void* stream) { return cuda::reduce(reduced, stream); });
  return true;
}
#else
bool reduce_on_gpu(absl::Span<const at::Tensor>, absl::Span<const at::Tensor>, ReduceOp) { return false; }
#endif

}  // namespace dtensor::internal
