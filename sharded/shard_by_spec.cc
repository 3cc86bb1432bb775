// ShardingSpec::shard() of every spec. Here, since specs know nothing of the tensors that are made by them.
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
