// A shard as bytes, for another process or a later one.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "sharded/shard.h"

namespace dtensor::sharded {

// A line of JSON, and the elements in row-major order; on the CPU. to_bytes(tensor) has no metadata.
std::string to_bytes(const at::Tensor& tensor);
std::string to_bytes(const Shard& shard);
// Errors (c10::Error): damaged. Tensors are on the CPU, whatever the placement says.
at::Tensor tensor_from_bytes(std::string_view bytes);
Shard shard_from_bytes(std::string_view bytes);

}  // namespace dtensor::sharded
