// ShardingSpec::shard() of every spec. Separate, since specs do not depend on sharded tensors.
#include <c10/util/Exception.h>

#include "sharded/chunk_sharding_spec.h"
#include "sharded/spread.h"

namespace dtensor::sharded {

ShardedTensor ShardingSpec::shard(const at::Tensor&, int64_t, const ProcessGroup&) const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, name(), ".shard not implemented yet!");
}

ShardedTensor ChunkShardingSpec::shard(const at::Tensor& tensor, int64_t src_rank, const ProcessGroup& group) const {
  return spread(tensor, *this, src_rank, group);
}

}  // namespace dtensor::sharded
