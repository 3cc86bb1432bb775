#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/redistribute_parts.h"
#include "sharded/chunk_sharding_spec.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/spread.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

struct Moved {
  ShardedTensorMetadata metadata;
  RankShards shards;
};

Moved moved(const ShardedTensor& t, const AnyShardingSpec& spec, const char* function) {
  const ProcessGroup& group = t.process_group();
  const World& world = group.world();
  Moved result;
  result.metadata = spec->build_metadata(t.sizes(), t.metadata().tensor_properties);
  for (const ShardMetadata& shard : result.metadata.shards_metadata)
    validate_remote_device(group, group.ranks()[0], shard.placement);
  const Layout from(world, boxes_of(t.metadata(), group)), to(world, boxes_of(result.metadata, group));
  RankPieces before = pieces_of(t);
  RankPieces after = redistribute_parts(before, t.sizes(), t.dtype(), from, to,
                                        {.function = function, .requires_grad = t.requires_grad()});
  // Unmoved tensors must not be shared between two sharded tensors.
  for (size_t i = 0; i < after.size(); ++i) {
    for (at::Tensor& tensor : after[i]) {
      const bool shared =
          std::any_of(before[i].begin(), before[i].end(), [&](auto& b) { return tensor.is_alias_of(b); });
      if (shared) tensor = tensor.clone();
    }
  }
  result.shards = shards_from(after, world, result.metadata, group);
  return result;
}

// The chunks in the order of their ranks, where the chunks before them end.
void order_by_rank(ShardedTensorMetadata& metadata, int64_t dim, const World& world) {
  int64_t offset = 0;
  for (ShardMetadata& shard : metadata.shards_metadata) {
    shard.shard_offsets[dim] = offset;
    offset += shard.shard_sizes[dim];
  }
  std::stable_sort(metadata.shards_metadata.begin(), metadata.shards_metadata.end(),
                   [&](const ShardMetadata& a, const ShardMetadata& b) {
                     return rank_of(*a.placement, world) < rank_of(*b.placement, world);
                   });
}

void check_reshard(const ShardedTensor& t, const AnyShardingSpec& spec, int64_t rank) {
  TORCH_CHECK_NOT_IMPLEMENTED(t.sharding_spec().as<ChunkShardingSpec>() && spec.as<ChunkShardingSpec>(),
                              "Only ChunkShardingSpec supported for reshard. Found ", t.sharding_spec()->name(),
                              " and ", spec->name(), ": resharded() takes any");
  const size_t count = t.local_shards(rank).size();
  TORCH_CHECK_NOT_IMPLEMENTED(count == 1, "Only single local shard supported for reshard. Rank ", rank, " has ", count,
                              ": resharded() takes any number");
  spec.as<ChunkShardingSpec>()->normalized_dim(t.dim());
}

}  // namespace

const ShardedTensor& ShardedTensor::reshard(const AnyShardingSpec& spec) const {
  TORCH_CHECK_VALUE(spec.defined(), "[reshard] no spec");
  const ProcessGroup& group = process_group();
  check_on_all_ranks(group, "reshard", [&](int64_t rank) { check_reshard(*this, spec, rank); });
  const auto* from = sharding_spec().as<ChunkShardingSpec>();
  const auto* to = spec.as<ChunkShardingSpec>();
  TORCH_CHECK_NOT_IMPLEMENTED(from && to, "[reshard] Only ChunkShardingSpec supported for reshard.");
  const int64_t dim = to->normalized_dim(this->dim());
  if (from->normalized_dim(this->dim()) == dim && from->placements() == to->placements()) return *this;
  Moved m = moved(*this, spec, "reshard");
  order_by_rank(m.metadata, dim, group.world());
  for (size_t i = 0; i < m.shards.size(); ++i) {
    for (Shard& shard : m.shards[i]) {
      const auto at = std::find_if(
          m.metadata.shards_metadata.begin(), m.metadata.shards_metadata.end(), [&](const ShardMetadata& md) {
            return md.placement == shard.metadata.placement && md.shard_sizes == shard.metadata.shard_sizes &&
                   (md.empty() || md.shard_offsets[dim] == shard.metadata.shard_offsets[dim]);
          });
      shard.metadata = *at;
    }
  }
  replace_shards(*this, spec, std::move(m.metadata), std::move(m.shards));
  return *this;
}

ShardedTensor ShardedTensor::resharded(const AnyShardingSpec& spec) const {
  TORCH_CHECK_VALUE(spec.defined(), "[resharded] no spec");
  Moved m = moved(*this, spec, "resharded");
  Parts parts = parts_of(*this);
  return make_sharded_tensor(
      {spec, std::move(m.metadata), std::move(m.shards), std::move(parts.group), parts.init_rrefs});
}

}  // namespace dtensor::sharded
