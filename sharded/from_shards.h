// Sharded tensors from existing shards.
//
//   RankShards mine;                                                     // one list per owned rank
//   for (int64_t r : group.owned_ranks()) mine.push_back({Shard::from_tensor_and_offsets(at::rand({5, 5}), {5 * r, 0},
//   r)});
//   ShardedTensor st = init_from_local_shards(mine, {20, 5}, group);
//
// The tensors are not copied. The metadata of the new tensor is built by its spec: for a chunk spec in the order of the
// offsets. A fault of one rank's shards is an error on all ranks, "[op] rank 2: ...".
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// nullopt: computed from the shards.
using GlobalSize = std::vector<std::optional<int64_t>>;

struct FromShardsOptions {
  bool init_rrefs = false;
};

// Collective: the ranks exchange their metadata, and the spec is inferred. With a nullopt in `sizes` the shards, one
// per rank, are stacked along dim 0 in the order of the group, whatever their offsets. Errors (ValueError):
// "ShardedTensor have no local shards on all ranks!"; of the shards: size, device, placement of another rank, "Only
// torch.strided layout ...", "Only torch.contiguous_format memory_format ..."; "Local shards' tensor dtype property
// need to be the same on rank:0! ..." within a rank, "ShardedTensor dtype property does not match from different ranks!
// ..." between ranks, also of pin_memory, requires_grad, global_size; validate_non_overlapping()'s and
// check_tensor()'s.
ShardedTensor init_from_local_shards(RankShards shards, const GlobalSize& sizes, const ProcessGroup& group,
                                     const FromShardsOptions& options = {});

// No communication (except in jobs a check that no rank failed): every rank passes the metadata of all. `spec`:
// inferred from it by default.
// Errors: c10::Error "Number of local shards (0) does not match number of local shards metadata in
// sharded_tensor_metadata (1) on rank (0) "; ValueError "shards_metadata must not be empty!", "Local shards' tensor
// dtype property is incompatible with tensor property on rank 0: ...", those of the metadata as above.
ShardedTensor init_from_local_shards_and_global_metadata(RankShards shards, const ShardedTensorMetadata& metadata,
                                                         const ProcessGroup& group, AnyShardingSpec spec = {},
                                                         const FromShardsOptions& options = {});

// One tensor per owned rank, which is its only shard; undefined for a rank without one.
// Errors (ValueError): "local_tensor is not a contiguous Tensor.", the spec's, and as above.
ShardedTensor init_from_local_tensor(const std::vector<at::Tensor>& tensors, const AnyShardingSpec& spec,
                                     const std::vector<int64_t>& sizes, const ProcessGroup& group,
                                     const FromShardsOptions& options = {});

}  // namespace dtensor::sharded
