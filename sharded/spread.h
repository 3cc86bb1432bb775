// Conversion between the tensors of shards and the parts that plans move.
#pragma once

#include "comm/rank_tensors.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// For any spec with disjoint shards: one exchange, in which every rank gets its shards of the tensor on the rank at
// position `src_rank` of the group. Shards are leaves that require grad if `tensor` does. Error (ValueError): no such
// position.
ShardedTensor spread(const at::Tensor& tensor, const AnyShardingSpec& spec, int64_t src_rank,
                     const ProcessGroup& group);

// The tensors of the shards, for each of world.owned_ranks() in the order of the metadata; on the ranks' devices, as
// plans require.
dtensor::internal::RankPieces pieces_of(const ShardedTensor& t);
// The inverse: such tensors as the shards of `metadata`, on the placements' devices, for each of group.owned_ranks().
RankShards shards_from(const dtensor::internal::RankPieces& pieces, const World& world,
                       const ShardedTensorMetadata& metadata, const ProcessGroup& group);

}  // namespace dtensor::sharded
