#include "sharded/chunk_sharding_spec.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "placement/geometry.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

ChunkShardingSpec::ChunkShardingSpec(int64_t dim, std::vector<RemoteDevice> placements)
    : dim_(dim), placements_(std::move(placements)) {}

ChunkShardingSpec::ChunkShardingSpec(const std::string& dim, std::vector<RemoteDevice> placements) : dim_(0) {
  (void)placements;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "ChunkShardingSpec does not support named dimension yet! Found '", dim,
                              "': give the number of the dim");
}

ChunkShardingSpec ChunkShardingSpec::from_value(const c10::IValue& dim, std::vector<RemoteDevice> placements) {
  if (dim.isString()) return ChunkShardingSpec(dim.toStringRef(), std::move(placements));
  TORCH_CHECK_VALUE(dim.isInt(), "Sharding dim needs to be an integer, found: ", dim);
  return ChunkShardingSpec(dim.toInt(), std::move(placements));
}

int64_t ChunkShardingSpec::normalized_dim(int64_t ndim) const {
  TORCH_CHECK_VALUE(dim_ >= -ndim && dim_ < ndim, "Invalid sharding dim: ", dim_, " for a tensor of ", ndim, " dims");
  return dim_ < 0 ? dim_ + ndim : dim_;
}

ShardedTensorMetadata ChunkShardingSpec::build_metadata(c10::IntArrayRef sizes,
                                                        const TensorProperties& properties) const {
  const int64_t dim = normalized_dim(static_cast<int64_t>(sizes.size()));
  TORCH_CHECK_VALUE(!placements_.empty(), "a chunk spec without placements: say where the chunks of dim ", dim_, " go");
  const auto chunks = static_cast<int64_t>(placements_.size());
  const int64_t split = get_split_size(sizes[dim], chunks);
  ShardedTensorMetadata metadata;
  metadata.size = sizes.vec();
  metadata.tensor_properties = properties;
  for (int64_t i = 0; i < chunks; ++i) {
    std::vector<int64_t> offsets(sizes.size(), 0), lengths = sizes.vec();
    offsets[dim] = split * i;
    lengths[dim] = get_chunked_dim_size(sizes[dim], split, i);
    metadata.shards_metadata.emplace_back(std::move(offsets), std::move(lengths), placements_[i]);
  }
  return metadata;
}

std::string ChunkShardingSpec::to_string() const {
  std::string placements;
  for (const RemoteDevice& p : placements_) placements += (placements.empty() ? "" : ", ") + p.str();
  return c10::str("ChunkShardingSpec(dim=", dim_, ", placements=[", placements, "])");
}

int64_t get_split_size(int64_t size, int64_t chunks) {
  TORCH_CHECK_VALUE(chunks > 0 && size >= 0, "cannot cut ", size, " into ", chunks, " chunks");
  return size / chunks + (size % chunks != 0 ? 1 : 0);
}

int64_t get_chunked_dim_size(int64_t size, int64_t split_size, int64_t i) {
  return std::max<int64_t>(std::min(size, split_size * (i + 1)) - split_size * i, 0);
}

ChunkParams get_chunk_sharding_params(int64_t size, const ChunkShardingSpec& spec, int64_t rank) {
  const auto chunks = static_cast<int64_t>(spec.placements().size());
  for (int64_t i = 0; i < chunks; ++i) {
    if (spec.placements()[i].rank() != rank) continue;
    const IndexRange run = chunk(size, chunks, i);
    return {run.begin, run.size};
  }
  TORCH_CHECK_VALUE(false, spec.to_string(), " has no chunk on rank ", rank);
}

}  // namespace dtensor::sharded
