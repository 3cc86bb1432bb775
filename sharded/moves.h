// Sharded tensors on other devices and of other dtypes: the arguments of ShardedTensor::to().
//
//   st.to({.dtype = at::kHalf});                       // the tensor itself if nothing changes
//   st.to({.device = c10::Device("cpu"), .group = gloo_group});
//   st.to(MoveOptions::like(other));
#pragma once

#include <optional>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// A CUDA device means each rank's own one; another index is warned about.
struct MoveOptions {
  std::optional<c10::Device> device = std::nullopt;
  std::optional<c10::ScalarType> dtype = std::nullopt;
  bool copy = false;  // copy even if nothing changes
  bool non_blocking = false;
  c10::MemoryFormat memory_format = c10::MemoryFormat::Preserve;
  ProcessGroup group = {};  // of the result; by default the same

  static MoveOptions like(const at::Tensor& t) { return {.device = t.device(), .dtype = t.scalar_type()}; }
  // From arguments that are known at run time only: dtype, device (also as a text or an index), tensor, or device and
  // dtype. Error (c10::Error): "ShardedTensor.to() have wrong arguments: ...".
  static MoveOptions from_values(const std::vector<c10::IValue>& arguments);
};

}  // namespace dtensor::sharded
