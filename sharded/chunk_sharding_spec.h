// One dim cut into chunks of equal size, one per placement.
//
//   ChunkShardingSpec rows(0, {"rank:0/cpu", "rank:1/cpu", "rank:2/cpu", "rank:3/cpu"});   // 10 rows: 3, 3, 3, 1
//
// A rank may have several chunks, or none. Equality compares the arguments: dims -2 and 0 are different specs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharded/sharding_spec.h"

namespace dtensor::sharded {

class ChunkShardingSpec : public ShardingSpec {
 public:
  // The dim's range is checked later, with a tensor.
  ChunkShardingSpec(int64_t dim, std::vector<RemoteDevice> placements);
  // A dim that is a name. Error, always (NotImplementedError): "ChunkShardingSpec does not support named dimension
  // yet!".
  ChunkShardingSpec(const std::string& dim, std::vector<RemoteDevice> placements);
  // A dim read at run time. Error (ValueError): "Sharding dim needs to be an integer, found: ..."; of a string as
  // above.
  static ChunkShardingSpec from_value(const c10::IValue& dim, std::vector<RemoteDevice> placements);

  int64_t dim() const { return dim_; }  // as given, maybe negative
  const std::vector<RemoteDevice>& placements() const { return placements_; }
  // Error (ValueError): "Invalid sharding dim: ..." for a tensor of `ndim` dims.
  int64_t normalized_dim(int64_t ndim) const;

  // In the order of the placements. An empty chunk begins where a full one would: chunk i at split * i, which may be
  // beyond the tensor. Error: normalized_dim()'s.
  ShardedTensorMetadata build_metadata(c10::IntArrayRef sizes, const TensorProperties& properties) const override;
  // One collective. Also for chunks that are empty, for several per rank, and for ranks that have none.
  ShardedTensor shard(const at::Tensor& tensor, int64_t src_rank, const ProcessGroup& group) const override;
  std::string name() const override { return "ChunkShardingSpec"; }
  std::string to_string() const override;
  friend bool operator==(const ChunkShardingSpec& a, const ChunkShardingSpec& b) {
    return a.dim_ == b.dim_ && a.placements_ == b.placements_;
  }

 private:
  int64_t dim_;
  std::vector<RemoteDevice> placements_;
};

// Size of the chunks of a dim of `size` in `chunks`: ceil(size / chunks). REQUIRES: chunks > 0.
int64_t get_split_size(int64_t size, int64_t chunks);
// The size of chunk i.
int64_t get_chunked_dim_size(int64_t size, int64_t split_size, int64_t i);
// First index and size of the first chunk of `rank`. Error (ValueError): the spec has no chunk on this rank.
struct ChunkParams {
  int64_t start = 0, size = 0;
  friend bool operator==(const ChunkParams&, const ChunkParams&) = default;
};
ChunkParams get_chunk_sharding_params(int64_t size, const ChunkShardingSpec& spec, int64_t rank);

}  // namespace dtensor::sharded
