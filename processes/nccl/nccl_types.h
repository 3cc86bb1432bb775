// NCCL's data types and reductions for those of LibTorch and this library.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <nccl.h>

#include "placement/placement.h"

namespace dtensor::internal {

inline ncclDataType_t nccl_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kChar:
      return ncclInt8;
    case at::kByte:
      return ncclUint8;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    default:
      TORCH_INTERNAL_ASSERT(false, "the table of backends gives NCCL ", dtype);
  }
}

inline ncclRedOp_t nccl_op(ReduceOp op) {
  constexpr ncclRedOp_t kOps[] = {ncclSum, ncclAvg, ncclProd, ncclMin, ncclMax};
  return kOps[static_cast<size_t>(op)];
}

}  // namespace dtensor::internal
