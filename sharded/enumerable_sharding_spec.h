// A list of shards of any size and position; and the checks of such lists.
#pragma once

#include <string>
#include <vector>

#include "sharded/sharding_spec.h"

namespace dtensor::sharded {

class EnumerableShardingSpec : public ShardingSpec {
 public:
  // Errors (ValueError): "Empty shard list provided: []", "Found inconsistent ranks for shards: 2 and 3" (numbers of
  // dims), shards that overlap.
  explicit EnumerableShardingSpec(std::vector<ShardMetadata> shards);

  const std::vector<ShardMetadata>& shards() const { return shards_; }

  // The list itself, after check_tensor().
  ShardedTensorMetadata build_metadata(c10::IntArrayRef sizes, const TensorProperties& properties) const override;
  std::string name() const override { return "EnumerableShardingSpec"; }
  std::string to_string() const override;
  friend bool operator==(const EnumerableShardingSpec& a, const EnumerableShardingSpec& b) {
    return a.shards_ == b.shards_;
  }

 private:
  std::vector<ShardMetadata> shards_;
};

// Error (ValueError): "Shards a and b overlap". Shards without elements overlap nothing. Takes O(n log n) steps for n
// shards along the dim with most cuts, plus the pairs that coincide there.
void validate_non_overlapping(const std::vector<ShardMetadata>& shards);
// Errors (ValueError): "Rank of tensor is 3, but shards rank is 2", "Shard offset ... and length ... exceeds tensor
// dim:
// ...", "Total volume of shards: 91 does not match tensor volume: 100, ...". An empty shard may begin anywhere.
// Together with validate_non_overlapping(): every element lies in exactly one shard.
void check_tensor(const std::vector<ShardMetadata>& shards, c10::IntArrayRef sizes);

// A ChunkShardingSpec if the shards are the chunks of one dim, in any order, with unclamped offsets; else an
// EnumerableShardingSpec. Errors: those of the latter.
AnyShardingSpec infer_sharding_spec(const std::vector<ShardMetadata>& shards);

}  // namespace dtensor::sharded
