#include "sharded/enumerable_sharding_spec.h"

#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "sharded/chunk_sharding_spec.h"

namespace dtensor::sharded {
namespace {

int64_t volume_of(c10::IntArrayRef sizes) {
  uint64_t volume = 0;
  TORCH_CHECK_VALUE(!c10::safe_multiplies_u64(sizes, &volume) && static_cast<int64_t>(volume) >= 0,
                    "a tensor of sizes ", sizes, " has more elements than can be counted");
  return static_cast<int64_t>(volume);
}

// The dim in which alone the shards begin elsewhere than at 0. nullopt: none, or several.
std::optional<size_t> candidate_dim(const std::vector<ShardMetadata>& shards) {
  std::optional<size_t> dim;
  for (const ShardMetadata& shard : shards) {
    for (size_t d = 0; d < shard.shard_offsets.size(); ++d) {
      if (shard.shard_offsets[d] == 0) continue;
      if (dim && *dim != d) return std::nullopt;
      dim = d;
    }
  }
  return dim;
}

// The shards in the order of their offsets along `dim` if they are its chunks. Empty ones may begin where the one
// before begins: of equal offsets those come first.
std::optional<ChunkShardingSpec> as_chunks(const std::vector<ShardMetadata>& shards, size_t dim) {
  std::vector<const ShardMetadata*> order;
  for (const ShardMetadata& shard : shards) order.push_back(&shard);
  std::stable_sort(order.begin(), order.end(), [&](const ShardMetadata* a, const ShardMetadata* b) {
    return a->shard_offsets[dim] < b->shard_offsets[dim];
  });
  int64_t size = 0;
  for (const ShardMetadata* shard : order) size += shard->shard_sizes[dim];
  const auto chunks = static_cast<int64_t>(order.size());
  const int64_t split = get_split_size(size, chunks);
  std::vector<RemoteDevice> placements;
  for (int64_t i = 0; i < chunks; ++i) {
    const ShardMetadata& shard = *order[i];
    bool fits = shard.placement.has_value() && shard.shard_offsets[dim] == split * i &&
                shard.shard_sizes[dim] == get_chunked_dim_size(size, split, i);
    for (size_t d = 0; d < shard.shard_sizes.size(); ++d) {
      fits &= d == dim || shard.shard_sizes[d] == order[0]->shard_sizes[d];
    }
    if (!fits) return std::nullopt;
    placements.push_back(*shard.placement);
  }
  return ChunkShardingSpec(static_cast<int64_t>(dim), std::move(placements));
}

}  // namespace

EnumerableShardingSpec::EnumerableShardingSpec(std::vector<ShardMetadata> shards) : shards_(std::move(shards)) {
  TORCH_CHECK_VALUE(!shards_.empty(), "Empty shard list provided: []");
  const size_t ndim = shards_[0].shard_offsets.size();
  for (const ShardMetadata& shard : shards_) {
    TORCH_CHECK_VALUE(shard.shard_offsets.size() == ndim, "Found inconsistent ranks for shards: ", ndim, " and ",
                      shard.shard_offsets.size());
  }
  validate_non_overlapping(shards_);
}

ShardedTensorMetadata EnumerableShardingSpec::build_metadata(c10::IntArrayRef sizes,
                                                             const TensorProperties& properties) const {
  check_tensor(shards_, sizes);
  ShardedTensorMetadata metadata;
  metadata.shards_metadata = shards_;
  metadata.size = sizes.vec();
  metadata.tensor_properties = properties;
  return metadata;
}

std::string EnumerableShardingSpec::to_string() const {
  std::string shards;
  for (const ShardMetadata& shard : shards_) shards += (shards.empty() ? "" : ", ") + shard.to_string();
  return "EnumerableShardingSpec(shards=[" + shards + "])";
}

void check_tensor(const std::vector<ShardMetadata>& shards, c10::IntArrayRef sizes) {
  int64_t volume = 0;
  const int64_t tensor_volume = volume_of(sizes);
  for (const ShardMetadata& shard : shards) {
    TORCH_CHECK_VALUE(shard.shard_offsets.size() == sizes.size(), "Rank of tensor is ", sizes.size(),
                      ", but shards rank is ", shard.shard_offsets.size());
    if (shard.empty()) continue;
    for (size_t d = 0; d < sizes.size(); ++d) {
      TORCH_CHECK_VALUE(shard.shard_offsets[d] <= sizes[d] && shard.shard_sizes[d] <= sizes[d] - shard.shard_offsets[d],
                        "Shard offset ", shard.shard_offsets[d], " and length ", shard.shard_sizes[d],
                        " exceeds tensor dim: ", sizes[d], " for shard ", shard);
    }
    // Shards that overlap may add up to more than can be counted; a tensor's elements cannot.
    volume = std::min(volume, std::numeric_limits<int64_t>::max() - shard.numel()) + shard.numel();
  }
  TORCH_CHECK_VALUE(volume == tensor_volume, "Total volume of shards: ", volume,
                    " does not match tensor volume: ", tensor_volume,
                    ", in other words all the individual shards do not cover the entire tensor");
}

AnyShardingSpec infer_sharding_spec(const std::vector<ShardMetadata>& shards) {
  bool same_ndim = true;
  for (const ShardMetadata& shard : shards) same_ndim &= shard.shard_offsets.size() == shards[0].shard_offsets.size();
  if (same_ndim) {
    if (const auto dim = candidate_dim(shards)) {
      if (const auto chunks = as_chunks(shards, *dim)) return *chunks;
    }
  }
  return EnumerableShardingSpec(shards);
}

}  // namespace dtensor::sharded
