#include "sharded/dtensor_bridge.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>

#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute_parts.h"
#include "placement/geometry.h"
#include "sharded/chunk_sharding_spec.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/spread.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using MeshAndPlacements = std::pair<DeviceMesh, Placements>;

// The boxes in row-major order of a grid of `counts` cells, or none if they are none.
std::optional<std::vector<RankBox>> as_grid(std::vector<RankBox> boxes, c10::IntArrayRef sizes,
                                            const std::vector<int64_t>& counts) {
  std::sort(boxes.begin(), boxes.end(), [](const RankBox& a, const RankBox& b) { return a.offsets < b.offsets; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    auto rest = static_cast<int64_t>(i);
    for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
      const IndexRange run = chunk(sizes[d], counts[d], rest % counts[d]);
      rest /= counts[d];
      if (boxes[i].offsets[d] != run.begin || boxes[i].sizes[d] != run.size) return std::nullopt;
    }
  }
  return boxes;
}

// A chunk spec says the order of empty chunks, too, which boxes cannot.
std::optional<MeshAndPlacements> of_chunks(const ShardedTensor& st, const ChunkShardingSpec& spec) {
  const World& world = st.process_group().world();
  std::vector<int64_t> ranks;
  for (const RemoteDevice& p : spec.placements()) ranks.push_back(rank_of(p, world));
  if (std::set<int64_t>(ranks.begin(), ranks.end()).size() != ranks.size()) return std::nullopt;
  const auto n = static_cast<int64_t>(ranks.size());
  return MeshAndPlacements(DeviceMesh(world, {n}, {"shard"}, std::move(ranks)),
                           {dtensor::Shard(spec.normalized_dim(st.dim()))});
}

std::optional<MeshAndPlacements> of_grid(const ShardedTensor& st) {
  const World& world = st.process_group().world();
  std::vector<RankBox> boxes = boxes_of(st.metadata(), st.process_group());
  std::vector<int64_t> counts, mesh_shape;
  Placements placements;
  int64_t cells = 1;
  for (int64_t d = 0; d < st.dim(); ++d) {
    std::set<int64_t> begins;
    for (const RankBox& box : boxes) begins.insert(box.offsets[d]);
    counts.push_back(static_cast<int64_t>(begins.size()));
    cells *= counts.back();
    if (counts.back() == 1) continue;
    mesh_shape.push_back(counts.back());
    placements.push_back(dtensor::Shard(d));
  }
  std::set<int64_t> owners;
  for (const RankBox& box : boxes) owners.insert(box.rank);
  if (cells != static_cast<int64_t>(boxes.size()) || owners.size() != boxes.size() || st.dim() == 0)
    return std::nullopt;
  const auto grid = as_grid(std::move(boxes), st.sizes(), counts);
  if (!grid) return std::nullopt;
  if (mesh_shape.empty()) {  // one shard of all
    mesh_shape.push_back(1);
    placements.push_back(dtensor::Shard(0));
  }
  std::vector<int64_t> ranks;
  for (const RankBox& box : *grid) ranks.push_back(box.rank);
  return MeshAndPlacements(DeviceMesh(world, mesh_shape, {}, std::move(ranks)), std::move(placements));
}

TensorProperties properties_of(const at::Tensor& t) {
  TensorProperties properties(t.scalar_type());
  properties.requires_grad = t.requires_grad();
  return properties;
}

AnyShardingSpec spec_of_parts(const DTensor& t) {
  const DeviceMesh& mesh = t.mesh();
  const World& world = mesh.world();
  TORCH_CHECK_VALUE(mesh.num_copies() == 1, "[from_dtensor] ", mesh.to_string(), " is a slice of a larger mesh");
  if (mesh.ndim() == 1 && t.placements()[0].is_shard()) {
    std::vector<RemoteDevice> places;
    for (int64_t rank : mesh.ranks()) places.emplace_back(rank, world.device(rank));
    return ChunkShardingSpec(t.placements()[0].dim(), std::move(places));
  }
  std::vector<ShardMetadata> shards;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    TORCH_CHECK_VALUE(t.placements()[m].is_sharded() || mesh.size(m) == 1, "[from_dtensor] ", t.spec().to_string(),
                      " is not cut along mesh dim '", mesh.names()[m],
                      "', so that ranks hold the same elements, or addends: redistribute() it, or give a spec");
  }
  for (int64_t rank : mesh.ranks()) {
    const LocalLayout part = t.spec().layout_of_rank(rank);
    TORCH_CHECK_VALUE(part.is_box() || part.empty(), "[from_dtensor] ", t.spec().to_string(), " leaves rank ", rank,
                      " several pieces: redistribute() it, or give a spec");
    const Shape sizes = part.sizes();
    shards.emplace_back(std::vector<int64_t>(part.offsets.begin(), part.offsets.end()),
                        std::vector<int64_t>(sizes.begin(), sizes.end()), RemoteDevice(rank, world.device(rank)));
  }
  return EnumerableShardingSpec(std::move(shards));
}

}  // namespace

std::optional<MeshAndPlacements> placements_of(const ShardedTensor& st) {
  if (const auto* chunks = st.sharding_spec().as<ChunkShardingSpec>()) return of_chunks(st, *chunks);
  return of_grid(st);
}

at::Tensor to_dtensor(const ShardedTensor& st) {
  const auto found = placements_of(st);
  TORCH_CHECK_VALUE(
      found.has_value(), "[to_dtensor] ", st.sharding_spec()->to_string(), " of a tensor of ", st.sizes(),
      " cannot be said as placements: give a mesh and placements to redistribute to, to_dtensor(st, mesh, "
      "{Shard(0)})");
  const auto& [mesh, placements] = *found;
  std::vector<at::Tensor> locals;
  for (int64_t rank : mesh.local_ranks()) locals.push_back(st.local_tensor(rank));
  if (locals.empty()) return to_dtensor(st, mesh, placements);
  FromLocalOptions options;
  options.shape = st.sizes().vec();
  return from_local(locals, mesh, placements, options);
}

at::Tensor to_dtensor(const ShardedTensor& st, const DeviceMesh& mesh, const Placements& placements) {
  const ProcessGroup& group = st.process_group();
  return from_parts(pieces_of(st), st.sizes(), st.dtype(), Layout(group.world(), boxes_of(st.metadata(), group)), mesh,
                    placements, {.function = "to_dtensor", .requires_grad = st.requires_grad()});
}

ShardedTensor from_dtensor(const at::Tensor& tensor) {
  const DTensor t(tensor);
  const World& world = t.mesh().world();
  AnyShardingSpec spec = spec_of_parts(t);
  ShardedTensorMetadata metadata = spec->build_metadata(tensor.sizes(), properties_of(tensor));
  allow_user_writes(tensor);  // the pieces may be the parts themselves
  const std::vector<at::Tensor> locals = to_local(tensor);
  RankPieces pieces(world.owned_ranks().size());
  for (size_t i = 0; i < locals.size(); ++i) {
    const auto& owned = world.owned_ranks();
    pieces[std::find(owned.begin(), owned.end(), t.mesh().local_ranks()[i]) - owned.begin()] = {locals[i]};
  }
  const ProcessGroup group = world;
  RankShards shards = shards_from(pieces, world, metadata, group);
  return make_sharded_tensor({std::move(spec), std::move(metadata), std::move(shards), group});
}

ShardedTensor from_dtensor(const at::Tensor& tensor, const AnyShardingSpec& spec, const ProcessGroup& given) {
  const DTensor t(tensor);
  const ProcessGroup group = given.defined() ? given : ProcessGroup(t.mesh().world());
  const World& world = group.world();
  TORCH_CHECK_VALUE(world == t.mesh().world(), "[from_dtensor] ", group.to_string(), ", but the tensor is on ",
                    t.mesh().world().name());
  ShardedTensorMetadata metadata = spec->build_metadata(tensor.sizes(), properties_of(tensor));
  const RankPieces pieces = to_parts(tensor, Layout(world, boxes_of(metadata, group)), {.function = "from_dtensor"});
  RankShards shards = shards_from(pieces, world, metadata, group);
  return make_sharded_tensor({spec, std::move(metadata), std::move(shards), group});
}

}  // namespace dtensor::sharded
