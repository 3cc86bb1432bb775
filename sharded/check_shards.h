// Checks of the shards of one rank.
#pragma once

#include <vector>

#include "sharded/process_group.h"
#include "sharded/shard.h"
#include "sharded/sharded_tensor_metadata.h"

namespace dtensor::sharded {

// The metadata and common properties of a rank's shards, without a size. Errors (ValueError): see
// init_from_local_shards(). REQUIRES: !shards.empty().
ShardedTensorMetadata metadata_of_local_shards(const std::vector<Shard>& shards, int64_t rank,
                                               const ProcessGroup& group);
// Errors: see init_from_local_shards_and_global_metadata().
void check_against_metadata(const std::vector<Shard>& shards, const ShardedTensorMetadata& metadata, int64_t rank,
                            const ProcessGroup& group);
// Stacks the shards along dim 0, in their order: sets their offsets, and the total size.
// Errors (ValueError): not the number of dims of the first one.
void lay_below_each_other(ShardedTensorMetadata& metadata);
// Sorts the shards of `rank` into the order of the metadata, and sets theirs from it. Error (ValueError): it has no
// such shard.
void put_in_order(std::vector<Shard>& shards, const ShardedTensorMetadata& metadata, int64_t rank, const World& world);

}  // namespace dtensor::sharded
