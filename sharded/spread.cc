#include "sharded/spread.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/redistribute_parts.h"
#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

RankBox whole(int64_t rank, c10::IntArrayRef sizes) {
  return {rank, Shape(sizes.size(), 0), Shape(sizes.begin(), sizes.end())};
}

// Shards of a rank in the order of the metadata, over tensors in that order.
std::vector<Shard> shards_of(int64_t rank, const std::vector<RankBox>& boxes, const ShardedTensorMetadata& metadata,
                             Pieces tensors) {
  std::vector<Shard> shards;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].rank != rank) continue;
    const ShardMetadata& md = metadata.shards_metadata[i];
    at::Tensor& t = tensors.at(shards.size());
    if (t.device() != md.placement->device()) t = t.to(md.placement->device());
    shards.emplace_back(std::move(t), md);
  }
  return shards;
}

}  // namespace

RankShards shards_from(const RankPieces& pieces, const World& world, const ShardedTensorMetadata& metadata,
                       const ProcessGroup& group) {
  const std::vector<RankBox> boxes = boxes_of(metadata, group);
  RankShards shards;
  for (int64_t rank : group.owned_ranks()) {
    const auto& owned = world.owned_ranks();
    const auto at = std::find(owned.begin(), owned.end(), rank) - owned.begin();
    shards.push_back(shards_of(rank, boxes, metadata, pieces[at]));
  }
  return shards;
}

RankPieces pieces_of(const ShardedTensor& t) {
  const ShardedTensorState& state = t.state();
  const auto& owned = state.group.world().owned_ranks();
  RankPieces pieces(owned.size());
  for (size_t i = 0; i < owned.size(); ++i) {
    for (const Shard& shard : t.local_shards(owned[i])) {
      const c10::Device device = state.group.world().device(owned[i]);
      pieces[i].push_back(shard.tensor.device() == device ? shard.tensor : shard.tensor.to(device));
    }
  }
  return pieces;
}

ShardedTensor spread(const at::Tensor& tensor, const AnyShardingSpec& spec, int64_t src_rank,
                     const ProcessGroup& group) {
  TORCH_CHECK_VALUE(src_rank >= 0 && src_rank < group.size(), "src_rank=", src_rank, " of a group of ", group.size(),
                    " ranks: it is a position in ", group.to_string());
  const World& world = group.world();
  const int64_t source = group.ranks()[src_rank];
  ShardedTensorMetadata metadata = spec->build_metadata(tensor.sizes(), TensorProperties::create_from_tensor(tensor));
  for (const ShardMetadata& shard : metadata.shards_metadata) {
    for (int64_t rank : group.owned_ranks()) validate_remote_device(group, rank, shard.placement);
  }
  RankPieces pieces(world.owned_ranks().size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (world.owned_ranks()[i] == source) pieces[i] = {tensor.detach().to(world.device(source))};
  }
  const Layout from(world, {whole(source, tensor.sizes())}), to(world, boxes_of(metadata, group));
  c10::AutoGradMode no_grad(false);
  pieces = redistribute_parts(pieces, tensor.sizes(), tensor.scalar_type(), from, to, {.function = "shard_tensor"});
  RankShards shards = shards_from(pieces, world, metadata, group);
  for (auto& of_rank : shards) {
    for (Shard& shard : of_rank) {
      if (shard.tensor.is_alias_of(tensor)) shard.tensor = shard.tensor.clone();
      shard.tensor = shard.tensor.detach();
      shard.tensor.set_requires_grad(tensor.requires_grad());
    }
  }
  return make_sharded_tensor({spec, std::move(metadata), std::move(shards), group});
}

}  // namespace dtensor::sharded
