#include "sharded/output_hooks.h"

#include <c10/util/Exception.h>

#include "sharded/chunk_sharding_spec.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {
namespace {

at::Tensor local_shard(const ShardedTensor& st, int64_t rank) {
  const at::Tensor local = st.local_tensor(rank);
  const auto* chunks = st.sharding_spec().as<ChunkShardingSpec>();
  if (chunks == nullptr) return local;
  const int64_t dim = chunks->normalized_dim(local.dim());
  return local.size(dim) == 1 ? local.squeeze(dim) : local;
}

}  // namespace

OutputHooks& reshard_output(OutputHooks& module, const AnyShardingSpec& spec) {
  TORCH_CHECK_TYPE(spec.defined(), "[reshard_output] the spec is null");
  module.add_output_hook([spec](const at::Tensor& output) {
    if (!is_sharded(output)) return output;
    return ShardedTensor(output).reshard(spec).tensor();
  });
  return module;
}

OutputHooks& collect_local_shard(OutputHooks& module) {
  module.add_output_hook([](const at::Tensor& output) {
    if (!is_sharded(output)) return output;
    const std::vector<at::Tensor> shards = local_shards_of(output);
    TORCH_CHECK_VALUE(shards.size() == 1, "[collect_local_shard] this process owns ", shards.size(),
                      " ranks of the output's group: call local_shards_of() on the output, which gives one for each");
    return shards[0];
  });
  return module;
}

std::vector<at::Tensor> local_shards_of(const at::Tensor& output) {
  const ShardedTensor st(output);
  std::vector<at::Tensor> shards;
  for (int64_t rank : st.process_group().owned_ranks()) shards.push_back(local_shard(st, rank));
  return shards;
}

}  // namespace dtensor::sharded
