// The tensors of this process whose shards other ranks may fetch, by number.
#pragma once

#include <cstdint>

#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// Gives a tensor with init_rrefs its number, the same on all ranks of its group. Collective over the group. Error
// (c10::Error): there is no ShardService.
void register_shards(const ShardedTensor& t);
void forget_shards(int64_t id) noexcept;
// A copy of a shard of this process. Errors (c10::Error): the tensor was freed, or has no such shard.
Shard read_shard(int64_t id, int64_t rank, int64_t index);
// Whether tensors may have remote shards now. Errors (c10::Error): "RPC Framework needs to be initialized ...", the
// worker's number is not its rank.
void check_shard_service(const World& world);

}  // namespace dtensor::sharded
