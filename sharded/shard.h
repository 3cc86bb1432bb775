// A shard that this process holds: the tensor and its box in the whole (torch.distributed._shard.sharded_tensor.Shard).
//
//   Shard s(at::rand({5, 5}), ShardMetadata({5, 0}, {5, 5}, "rank:1/cpu"));
//   Shard t = Shard::from_tensor_and_offsets(at::rand({5, 5}), {5, 0}, /*rank=*/1);
//
// (Inside this namespace `Shard` is this one, and the placement is `dtensor::Shard`.)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "sharded/shard_metadata.h"

namespace dtensor::sharded {

struct Shard {
  // Errors (ValueError): "Shard tensor size does not match with metadata.shard_lengths! ...", "Local shard tensor
  // device does not match with local Shard's placement! ..." (where there is a placement).
  Shard(at::Tensor tensor, ShardMetadata metadata);
  // Sizes and device of the tensor.
  static Shard from_tensor_and_offsets(at::Tensor tensor, std::vector<int64_t> offsets, int64_t rank);

  // May be replaced later, without checks.
  at::Tensor tensor;
  ShardMetadata metadata;
};

// The shards of several ranks: one list per rank, in the order of group.owned_ranks(). One list in a job of processes,
// four in World::local(4), none in a process outside the group.
using RankShards = std::vector<std::vector<Shard>>;

}  // namespace dtensor::sharded
