#include "sharded/shard.h"

#include <c10/util/Exception.h>

namespace dtensor::sharded {

Shard::Shard(at::Tensor t, ShardMetadata md) : tensor(std::move(t)), metadata(std::move(md)) {
  TORCH_CHECK_VALUE(tensor.defined(), "Shard tensor is undefined");
  TORCH_CHECK_VALUE(tensor.sizes() == c10::IntArrayRef(metadata.shard_sizes),
                    "Shard tensor size does not match with metadata.shard_lengths! Found shard tensor size: ",
                    tensor.sizes(), ", metadata.shard_lengths: ", c10::IntArrayRef(metadata.shard_sizes), ", ");
  if (!metadata.placement) return;
  TORCH_CHECK_VALUE(metadata.placement->device() == tensor.device(),
                    "Local shard tensor device does not match with local Shard's placement! Found local shard tensor "
                    "device: ",
                    tensor.device(), ", local shard metadata placement device: ", metadata.placement->device());
}

Shard Shard::from_tensor_and_offsets(at::Tensor tensor, std::vector<int64_t> offsets, int64_t rank) {
  TORCH_CHECK_VALUE(tensor.defined(), "Shard tensor is undefined");
  ShardMetadata metadata(std::move(offsets), tensor.sizes().vec(), RemoteDevice(rank, tensor.device()));
  return Shard(std::move(tensor), std::move(metadata));
}

}  // namespace dtensor::sharded
