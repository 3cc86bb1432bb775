// The metadata of a sharded tensor, and its text form.
//
//   ShardedTensorMetadata md{{ShardMetadata({0}, {2}, "rank:0/cpu"), ShardMetadata({2}, {2}, "rank:1/cpu")}, {4}, {}};
//   deserialize_metadata(serialize(md)) == md;
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sharded/shard_metadata.h"

namespace dtensor::sharded {

struct TensorProperties {
  TensorProperties();  // the default dtype, as it is now
  explicit TensorProperties(c10::ScalarType type) : dtype(type) {}
  // dtype, layout, requires_grad and pinning of `t`; contiguous.
  static TensorProperties create_from_tensor(const at::Tensor& t);

  c10::ScalarType dtype;
  c10::Layout layout = c10::kStrided;
  bool requires_grad = false;
  c10::MemoryFormat memory_format = c10::MemoryFormat::Contiguous;
  bool pin_memory = false;

  friend bool operator==(const TensorProperties&, const TensorProperties&) = default;
};

struct ShardedTensorMetadata {
  std::vector<ShardMetadata> shards_metadata;
  std::vector<int64_t> size;  // of the whole tensor
  TensorProperties tensor_properties;

  std::string to_string() const;
  friend bool operator==(const ShardedTensorMetadata&, const ShardedTensorMetadata&) = default;
};

// JSON with format and version. Error (c10::Error): a memory format other than contiguous, channels_last, preserve.
std::string serialize(const ShardedTensorMetadata& metadata);
// Errors (c10::Error): another format or version, or malformed text: the error names the fault and its position;
// "Invalid torch.memory_format encoding: ...". Values are checked as their constructors check them (ValueError).
ShardedTensorMetadata deserialize_metadata(std::string_view text);

// An uninitialised tensor with these properties.
at::Tensor create_tensor_from_params(c10::IntArrayRef sizes, c10::Device device, const TensorProperties& properties);

}  // namespace dtensor::sharded
