#include "plan/search/step_pricer.h"

#include <algorithm>
#include <bit>

namespace dtensor::internal {
namespace {

using Kind = RedistributeStep::Kind;

Collective collective_of(Kind kind) {
  RedistributeStep step;
  step.kind = kind;
  step.bytes = 1;
  return step.collective();
}

}  // namespace

int64_t StepPricer::peak_with_buffers(const PricedStep& edge, const PlacementPointers& before,
                                      const PlacementPointers& after) const {
  MeshDims dims;
  int64_t group = 1;
  for (int64_t m = 0; m < geometry.ndim(); ++m) {
    if ((edge.dims >> m & 1) == 0) continue;
    dims.push_back(m);
    group *= geometry.mesh_size(m);
  }
  const auto scratch = [&](int64_t bytes) {
    return communicator_.scratch_bytes(collective_of(edge.kind), meta_.dtype,
                                       edge.op == ReduceOp::kNorm2 ? ReduceOp::kSum : edge.op, bytes, group);
  };
  if (edge.kind == Kind::kAllReduce) {
    const int64_t part = geometry.part_bytes(before);
    return 2 * part + scratch(part);
  }
  const bool reduces = edge.kind == Kind::kReduceScatter;
  const int64_t reducing_element = reduces ? scratch(static_cast<int64_t>(c10::elementSize(meta_.dtype))) : 0;
  return geometry.packed_bytes(before, after, dims, reduces, reducing_element, edge.chunks);
}

// The step's kind, op, bytes and the seconds of local copies. `in`, `out`: bytes of the largest part.
PricedStep StepPricer::moved(Kind kind, uint64_t dims, const PlacementPointers& before, const PlacementPointers& after,
                             int64_t group, int64_t in, int64_t out) const {
  PricedStep edge;
  edge.kind = kind;
  edge.dims = dims;
  const auto first = static_cast<size_t>(std::countr_zero(dims));  // of the mesh dims that take part
  switch (kind) {
    case Kind::kFill:
      edge.op = after[first]->reduce_op();
      [[fallthrough]];
    case Kind::kSlice:
      edge.seconds = cost_.copy(out);
      break;
    case Kind::kAllReduce:
      edge.op = before[first]->reduce_op();
      edge.bytes = 2 * in * (group - 1) / group;
      break;
    case Kind::kReduceScatter:
      edge.op = before[first]->reduce_op();
      edge.bytes = in * (group - 1) / group;
      edge.seconds = cost_.copy(in);
      break;
    case Kind::kAllGather:
      edge.bytes = geometry.received_bytes(before, after);
      edge.seconds = cost_.copy(out);
      break;
    case Kind::kPermute:
    case Kind::kAllToAll:
    case Kind::kTransfer:
      edge.bytes = geometry.received_bytes(before, after);
      if (edge.bytes == 0) {  // every rank has already all that it needs
        edge.kind = Kind::kSlice;
        edge.seconds = cost_.copy(out);
        break;
      }
      if (in == out && geometry.same_parts(before, after)) edge.kind = Kind::kPermute;
      edge.seconds = cost_.copy(in + out);
      break;
  }
  return edge;
}

// Several rounds have smaller buffers. No more rounds than the longest dim.
void StepPricer::split_into_rounds(const PlacementPointers& before, const PlacementPointers& after, int64_t group,
                                   PricedStep& edge) {
  int64_t longest = 1;
  for (int64_t d = 0; d < geometry.tensor_ndim(); ++d) longest = std::max(longest, geometry.size(d));
  longest = std::min(longest, kMaxRounds);
  for (int64_t chunks = 2; chunks < 2 * longest && edge.peak_bytes > limits_.max_bytes; chunks *= 2) {
    is_allowed(edge.peak_bytes);
    edge.chunks = std::min(chunks, longest);
    edge.peak_bytes = peak_with_buffers(edge, before, after);
  }
  const double latency =
      cost_.collective(collective_of(edge.kind), GroupExtent::of_links(group, (edge.dims & between_nodes_) != 0), 0);
  edge.seconds += static_cast<double>(edge.chunks - 1) * latency;
}

bool StepPricer::price(Kind kind, uint64_t dims, const PlacementPointers& before, const PlacementPointers& after,
                       PricedStep& edge) {
  int64_t group = 1;
  for (int64_t m = 0; m < geometry.ndim(); ++m) {
    if ((dims >> m & 1) != 0) group *= geometry.mesh_size(m);
  }
  const int64_t in = geometry.part_bytes(before);
  const int64_t out = geometry.part_bytes(after);
  edge = moved(kind, dims, before, after, group, in, out);
  edge.peak_bytes = in + out;
  if (edge.is_local()) return is_allowed(edge.peak_bytes);

  edge.seconds += cost_.collective(collective_of(edge.kind), GroupExtent::of_links(group, (dims & between_nodes_) != 0),
                                   edge.bytes);
  if (!cost_.uses_staging_buffers || leaves_buffers_out()) return is_allowed(edge.peak_bytes);
  if (std::max(in, out) >= limits_.max_bytes)
    return is_allowed(std::max(in, out) + 1);  // and at least one byte is sent
  edge.peak_bytes = peak_with_buffers(edge, before, after);
  if (edge.peak_bytes > limits_.max_bytes && kind != Kind::kAllReduce) split_into_rounds(before, after, group, edge);
  return is_allowed(edge.peak_bytes);
}

}  // namespace dtensor::internal
