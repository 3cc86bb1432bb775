// The state of a sharded tensor; for this folder's operators and for registered ones.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plan/layout.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// Shared by the handles of a tensor, and by what LibTorch copies shallowly.
struct ShardedTensorState final : c10::BackendMeta {
  ProcessGroup group;
  AnyShardingSpec spec;
  ShardedTensorMetadata metadata;
  RankShards shards;  // one list per group.owned_ranks()
  bool init_rrefs = false;
  // Where init_rrefs: its number at this process, and at those of the group's ranks.
  int64_t id = -1;
  std::vector<int64_t> ids;

  ~ShardedTensorState() override;
};

struct Parts {
  AnyShardingSpec spec;
  ShardedTensorMetadata metadata;
  RankShards shards;
  ProcessGroup group;
  bool init_rrefs = false;
};

// Nothing is checked, and nothing sent but what init_rrefs needs. metadata says dtype and requires_grad.
ShardedTensor make_sharded_tensor(Parts parts);
// The parts of `t`, to change some and make another one of; the shards' tensors are shared.
Parts parts_of(const ShardedTensor& t);
// In place: another spec, other metadata and shards, of the same global size and dtype.
void replace_shards(const ShardedTensor& t, AnyShardingSpec spec, ShardedTensorMetadata metadata, RankShards shards);

// A plan's layout: the boxes of the shards in their order, those of each rank together being its shards. Boxes of empty
// shards begin inside of the tensor. Worker names are resolved (remote_shard.h).
std::vector<RankBox> boxes_of(const ShardedTensorMetadata& metadata, const ProcessGroup& group);

}  // namespace dtensor::sharded
