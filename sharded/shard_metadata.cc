#include "sharded/shard_metadata.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <ostream>

#include "absl/hash/hash.h"

namespace dtensor::sharded {

ShardMetadata::ShardMetadata(std::vector<int64_t> offsets, std::vector<int64_t> sizes,
                             std::optional<RemoteDevice> where)
    : shard_offsets(std::move(offsets)), shard_sizes(std::move(sizes)), placement(std::move(where)) {
  TORCH_CHECK_VALUE(shard_offsets.size() == shard_sizes.size(),
                    "shard_offsets and shard_sizes should have the same number of elements, found ",
                    shard_offsets.size(), " and ", c10::IntArrayRef(shard_sizes), " respectively");
  for (size_t d = 0; d < shard_offsets.size(); ++d) {
    TORCH_CHECK_VALUE(shard_offsets[d] >= 0, "shard_offsets should be >=0, found ", shard_offsets[d], " for dim ", d);
    TORCH_CHECK_VALUE(shard_sizes[d] >= 0, "shard_sizes should be >= 0, found ", shard_sizes[d], " for dim ", d);
  }
}

bool ShardMetadata::empty() const {
  return std::any_of(shard_sizes.begin(), shard_sizes.end(), [](int64_t size) { return size == 0; });
}

int64_t ShardMetadata::numel() const {
  int64_t numel = 1;
  for (int64_t size : shard_sizes) numel *= size;
  return numel;
}

std::string ShardMetadata::to_string() const {
  return c10::str("ShardMetadata(shard_offsets=", c10::IntArrayRef(shard_offsets),
                  ", shard_sizes=", c10::IntArrayRef(shard_sizes),
                  ", placement=", placement ? placement->str() : "None", ")");
}

std::ostream& operator<<(std::ostream& os, const ShardMetadata& metadata) { return os << metadata.to_string(); }

}  // namespace dtensor::sharded

size_t std::hash<dtensor::sharded::ShardMetadata>::operator()(const dtensor::sharded::ShardMetadata& m) const {
  return absl::HashOf(m);
}
