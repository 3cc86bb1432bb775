#include "ops/halo/exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "comm/block_copy.h"
#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// The segments, one per dim, of a message's combination.
std::vector<Segment> combination(const HaloPlan::Rank& rank, int64_t number) {
  std::vector<Segment> segments(rank.held.size());
  for (size_t k = segments.size(); k-- > 0;) {
    const auto n = static_cast<int64_t>(rank.held[k].size());
    segments[k] = rank.held[k][number % n];
    number /= n;
  }
  return segments;
}

// The elements of a segment of `t`, from element `begin` on. A segment with negative step is copied.
at::Tensor taken(const at::Tensor& t, int64_t dim, const Segment& s) {
  if (s.step == 0) {
    std::vector<int64_t> sizes(t.sizes().vec());
    sizes[dim] = s.size;
    return t.narrow(dim, s.index, 1).expand(sizes);
  }
  if (s.step > 0) return t.slice(dim, s.index, s.index + (s.size - 1) * s.step + 1, s.step);
  const int64_t first = s.index + (s.size - 1) * s.step;
  return t.slice(dim, first, s.index + 1, -s.step).flip(dim);
}

void add_to(at::Tensor t, at::Tensor value, const std::vector<int64_t>& dims, const std::vector<Segment>& segments) {
  for (size_t k = 0; k < dims.size(); ++k) {
    const Segment& s = segments[k];
    const int64_t dim = dims[k];
    if (s.step == 0) {
      value = value.sum(dim, /*keepdim=*/true).to(value.scalar_type());
      t = t.narrow(dim, s.index, 1);
    } else if (s.step > 0) {
      t = t.slice(dim, s.index, s.index + (s.size - 1) * s.step + 1, s.step);
    } else {
      value = value.flip(dim);
      t = t.slice(dim, s.index + (s.size - 1) * s.step, s.index + 1, -s.step);
    }
  }
  t.add_(value);
}

std::shared_ptr<const LayoutChange> layout_change(const HaloPlan& plan, bool back) {
  const Spec& spec = *plan.source;
  const LayoutChange::Side parts{spec.placements(), spec.mesh().to_string()};
  const LayoutChange::Side halos{std::nullopt, plan.text};
  return std::make_shared<const LayoutChange>(spec.dtype(), spec.sizes(), back ? halos : parts, back ? parts : halos);
}

// One collective; only copies if no rank lacks anything.
void exchange(const HaloPlan& plan, absl::Span<const Message> messages, const RankPieces& inputs,
              const RankPieces& outputs, const CommCause& cause, bool back) {
  const DeviceMesh& mesh = plan.source->mesh();
  const World& world = mesh.world();
  if (plan.is_local()) {
    const RankSlots slots(mesh.local_ranks(), world.size());
    for (const Message& m : messages)
      copy_block(inputs[slots[m.sender]][m.input], outputs[slots[m.receiver]][m.output], m.block);
    return;
  }
  CommCall call;
  call.group = plan.group;
  call.ranks = mesh.local_ranks();
  call.event.cause = cause;
  call.event.bytes = back ? plan.bytes_back : plan.bytes;
  call.event.dtype = plan.source->dtype();
  if (world.has_data() || has_listeners()) call.event.layout_change = layout_change(plan, back);
  world.communicator().exchange(call, Collective::kAllToAll, messages, inputs, outputs);
  world.memory().touch(plan.peak_bytes);
}

// For every owned rank, the combinations of segments that are shown.
RankPieces shown_pieces(const HaloPlan& plan, const RankTensors& locals) {
  RankPieces pieces(locals.size());
  for (size_t i = 0; i < locals.size(); ++i) {
    const HaloPlan::Rank& rank = plan.ranks[i];
    int64_t combinations = 1;
    for (const Segments& held : rank.held) combinations *= static_cast<int64_t>(held.size());
    for (int64_t c = 0; c < combinations; ++c) {
      at::Tensor part = locals[i];
      const std::vector<Segment> segments = combination(rank, c);
      for (size_t k = 0; k < segments.size(); ++k) part = taken(part, plan.dims[k], segments[k]);
      pieces[i].push_back(std::move(part));
    }
  }
  return pieces;
}

}  // namespace

RankTensors fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const CommCause& cause) {
  const RankTensors result = empty_halos(plan, locals);
  fetch_halos(plan, locals, fill, cause, result);
  return result;
}

RankTensors empty_halos(const HaloPlan& plan, const RankTensors& locals) {
  return empty_halos(plan, locals, plan.source->strides());
}

RankTensors empty_halos(const HaloPlan& plan, const RankTensors& locals, at::IntArrayRef strides) {
  LocalGuard guard;
  RankTensors result;
  for (size_t i = 0; i < locals.size(); ++i) {
    const auto options = at::TensorOptions(locals[i].scalar_type()).device(locals[i].device());
    const Shape& sizes = plan.ranks[i].wanted;
    result.push_back(at::empty_strided(sizes, dense_in_order_of(strides, sizes), options));
  }
  return result;
}

void fetch_halos(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill, const CommCause& cause,
                 const RankTensors& result) {
  LocalGuard guard;
  RankPieces outputs;
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!plan.ranks[i].filled) result[i].fill_(fill);
    outputs.push_back({result[i]});
  }
  exchange(plan, plan.messages, shown_pieces(plan, locals), outputs, cause, /*back=*/false);
}

RankTensors received_halos(const HaloPlan& plan, const RankTensors& boxes) {
  LocalGuard guard;
  const DeviceMesh& mesh = plan.source->mesh();
  const RankSlots slots(mesh.local_ranks(), mesh.world().size());
  RankPieces pieces(boxes.size());
  for (const Message& m : plan.messages) {
    const int64_t slot = slots[m.receiver];
    if (slot < 0 || m.sender == m.receiver) continue;
    pieces[slot].push_back(block_view(boxes[slot], m.block.to, m.block.sizes).reshape({-1}));
  }
  RankTensors result;
  for (size_t i = 0; i < boxes.size(); ++i)
    result.push_back(pieces[i].empty() ? boxes[i].new_empty({0}) : at::cat(pieces[i]));
  return result;
}

RankTensors boxes_again(const HaloPlan& plan, const RankTensors& locals, const at::Scalar& fill,
                        const RankTensors& received) {
  RankTensors result = empty_halos(plan, locals);
  LocalGuard guard;
  const DeviceMesh& mesh = plan.source->mesh();
  const RankSlots slots(mesh.local_ranks(), mesh.world().size());
  for (size_t i = 0; i < locals.size(); ++i) {
    if (!plan.ranks[i].filled) result[i].fill_(fill);
  }
  const RankPieces inputs = shown_pieces(plan, locals);
  std::vector<int64_t> taken(locals.size(), 0);  // of the received elements
  for (const Message& m : plan.messages) {
    const int64_t slot = slots[m.receiver];
    if (slot < 0) continue;
    if (m.sender == m.receiver) {
      copy_block(inputs[slot][m.input], result[slot], m.block);
      continue;
    }
    const int64_t size = numel_of(m.block.sizes);
    const at::Tensor piece = received[slot].narrow(0, taken[slot], size).view(m.block.sizes);
    copy_block(piece, result[slot], {Shape(m.block.sizes.size(), 0), m.block.to, m.block.sizes});
    taken[slot] += size;
  }
  return result;
}

RankTensors add_back_halos(const HaloPlan& plan, const RankTensors& pieces, const CommCause& cause) {
  LocalGuard guard;
  const DeviceMesh& mesh = plan.source->mesh();
  const RankSlots slots(mesh.local_ranks(), mesh.world().size());
  RankPieces inputs(pieces.size()), outputs(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) inputs[i].push_back(pieces[i]);

  // A received piece: its position in the owner's combinations.
  struct Arrival {
    int64_t slot, combination;
    Shape from;  // in the combination
    at::Tensor value;
  };
  std::vector<Arrival> arrivals;
  std::vector<Message> messages;
  for (const Message& m : plan.messages) {
    const int64_t slot = slots[m.sender];
    if (m.sender == m.receiver) {  // not packed
      arrivals.push_back({slot, m.input, m.block.from, block_view(pieces[slot], m.block.to, m.block.sizes)});
      continue;
    }
    Message& back = messages.emplace_back(
        Message{m.receiver, m.sender, 0, 0, {m.block.to, Shape(m.block.sizes.size(), 0), m.block.sizes}});
    if (slot < 0) continue;
    back.output = static_cast<int64_t>(outputs[slot].size());
    const auto options = at::TensorOptions(plan.source->dtype()).device(mesh.world().device(m.sender));
    outputs[slot].push_back(at::empty(m.block.sizes, options));
    arrivals.push_back({slot, m.input, m.block.from, outputs[slot].back()});
  }
  std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver) < std::tie(b.sender, b.receiver);
  });
  exchange(plan, messages, inputs, outputs, cause, /*back=*/true);

  RankTensors result;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Shape sizes = plan.source->local_shape(static_cast<int64_t>(i));
    const auto options = at::TensorOptions(pieces[i].scalar_type()).device(pieces[i].device());
    result.push_back(at::empty_strided(sizes, dense_in_order_of(plan.source->strides(), sizes), options).zero_());
  }
  for (const Arrival& a : arrivals) {
    std::vector<Segment> segments = combination(plan.ranks[a.slot], a.combination);
    for (size_t k = 0; k < segments.size(); ++k) {
      const int64_t from = a.from[plan.dims[k]];
      segments[k].index += from * segments[k].step;
      segments[k].size = a.value.size(plan.dims[k]);
    }
    add_to(result[a.slot], a.value, plan.dims, segments);
  }
  return result;
}

}  // namespace dtensor::internal
