// One shard of a tensor: its box, and its device (torch.distributed._shard.metadata.ShardMetadata).
//
//   ShardMetadata md({5, 0}, {5, 5}, "rank:1/cpu");   // rows 5-9, columns 0-4
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "sharded/remote_device.h"

namespace dtensor::sharded {

struct ShardMetadata {
  std::vector<int64_t> shard_offsets;
  std::vector<int64_t> shard_sizes;
  std::optional<RemoteDevice> placement;

  ShardMetadata() = default;
  // Errors (ValueError): as many offsets as sizes, neither negative; RemoteDevice's.
  ShardMetadata(std::vector<int64_t> offsets, std::vector<int64_t> sizes,
                std::optional<RemoteDevice> placement = std::nullopt);
  ShardMetadata(std::vector<int64_t> offsets, std::vector<int64_t> sizes, const char* placement)
      : ShardMetadata(std::move(offsets), std::move(sizes), std::optional<RemoteDevice>(placement)) {}
  ShardMetadata(std::vector<int64_t> offsets, std::vector<int64_t> sizes, const std::string& placement)
      : ShardMetadata(std::move(offsets), std::move(sizes), std::optional<RemoteDevice>(placement)) {}

  bool empty() const;  // without elements
  int64_t numel() const;
  std::string to_string() const;

  friend bool operator==(const ShardMetadata& a, const ShardMetadata& b) {
    return a.shard_offsets == b.shard_offsets && a.shard_sizes == b.shard_sizes && a.placement == b.placement;
  }
  friend bool operator!=(const ShardMetadata& a, const ShardMetadata& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const ShardMetadata& m) {
    return H::combine(std::move(h), m.shard_offsets, m.shard_sizes, m.placement);
  }
};

std::ostream& operator<<(std::ostream& os, const ShardMetadata& metadata);

}  // namespace dtensor::sharded

template <>
struct std::hash<dtensor::sharded::ShardMetadata> {
  size_t operator()(const dtensor::sharded::ShardMetadata& m) const;
};
