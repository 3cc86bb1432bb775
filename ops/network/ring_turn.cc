#include "ops/network/ring_turn.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/communicator.h"
#include "comm/scope.h"

namespace dtensor::internal {
namespace {

std::shared_ptr<const LayoutChange> layout_change(const Spec& spec, c10::ScalarType dtype, int64_t steps) {
  const auto at = [](int64_t n) {
    return n == 0 ? std::string("own parts") : c10::str("parts of ", n, " ranks before");
  };
  return std::make_shared<const LayoutChange>(dtype, spec.sizes(), LayoutChange::Side{spec.placements(), at(steps)},
                                              LayoutChange::Side{spec.placements(), at(steps + 1)});
}

// The part of the rank at `position` along a mesh dim, otherwise at the coordinate of the i-th local rank.
LocalLayout part_at(const Spec& spec, int64_t mesh_dim, int64_t i, int64_t position) {
  const DeviceMesh& mesh = spec.mesh();
  std::vector<int64_t> coordinate = mesh.local_coordinate(i).vec();
  coordinate[mesh_dim] = position;
  return local_layout(spec.sizes(), mesh.shape(), spec.placements(), coordinate);
}

}  // namespace

int64_t position_after(const DeviceMesh& mesh, int64_t mesh_dim, int64_t i, int64_t steps) {
  const int64_t n = mesh.size(mesh_dim);
  return ((mesh.local_coordinate(i)[mesh_dim] - steps) % n + n) % n;
}

Ring::Ring(std::vector<SpecPtr> specs, int64_t mesh_dim, c10::ScalarType dtype)
    : specs_(std::move(specs)), mesh_dim_(mesh_dim), dtype_(dtype) {}

int64_t Ring::bytes() const {
  int64_t bytes = 0;
  for (const SpecPtr& spec : specs_) {
    bytes += spec->max_local_bytes() / static_cast<int64_t>(c10::elementSize(spec->dtype())) *
             static_cast<int64_t>(c10::elementSize(dtype_));
  }
  return bytes;
}

Ring::Move Ring::begin_move(const RankPieces& parts, int64_t steps, const CommCause& cause) const {
  const DeviceMesh& mesh = specs_.front()->mesh();
  const World& world = mesh.world();
  const RankGroups& group = mesh.get_group(mesh_dim_);
  const RankSlots slots(mesh.local_ranks(), world.size());
  Move move{RankPieces(parts.size()), nullptr};
  std::vector<Message> messages;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t rank = mesh.local_ranks()[i], position = group.position_of[rank];
    const auto& members = group.members[group.group_of[rank]];
    const int64_t next = members[(position + 1) % group.size],
                  before = members[(position + group.size - 1) % group.size];
    const auto options = at::TensorOptions(dtype_).device(world.device(rank));
    for (size_t k = 0; k < specs_.size(); ++k) {
      const auto index = static_cast<int64_t>(k);
      const auto add = [&](int64_t sender, int64_t receiver, const Shape& sizes) {
        const Shape origin(sizes.size(), 0);
        messages.push_back({sender, receiver, index, index, {origin, origin, sizes}});
      };
      const int64_t local = static_cast<int64_t>(i);
      const Shape arriving =
          part_at(*specs_[k], mesh_dim_, local, position_after(mesh, mesh_dim_, local, steps + 1)).sizes();
      move.parts[i].push_back(at::empty({arriving.data(), arriving.size()}, options));
      add(before, rank, arriving);
      if (slots[next] < 0) {
        add(rank, next, part_at(*specs_[k], mesh_dim_, local, position_after(mesh, mesh_dim_, local, steps)).sizes());
      }
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver, a.input) < std::tie(b.sender, b.receiver, b.input);
  });
  CommCall call;
  call.group = &group;
  call.ranks = mesh.local_ranks();
  call.event.cause = cause;
  call.event.bytes = bytes();
  call.event.dtype = dtype_;
  call.event.more_tensors = static_cast<int>(specs_.size()) - 1;
  if (world.has_data() || has_listeners()) call.event.layout_change = layout_change(*specs_.front(), dtype_, steps);
  call.work = &move.work;
  world.communicator().exchange(call, Collective::kPermute, messages, parts, move.parts);
  return move;
}

}  // namespace dtensor::internal
