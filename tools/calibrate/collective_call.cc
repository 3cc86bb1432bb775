#include "tools/calibrate/collective_call.h"

#include <ATen/ops/ones.h>

#include <algorithm>

namespace dtensor::tools {
using namespace internal;

void run_collective(Communicator& comm, Collective c, const CallArguments& a) {
  switch (c) {
    case Collective::kAllReduce:
      comm.all_reduce(a.call, a.whole, ReduceOp::kSum);
      break;
    case Collective::kAllGather:
      comm.all_gather(a.call, a.whole);
      break;
    case Collective::kReduceScatter:
      comm.reduce_scatter(a.call, a.pieces, ReduceOp::kSum);
      break;
    case Collective::kAllToAll:
      comm.all_to_all(a.call, a.pieces);
      break;
    case Collective::kBroadcast:
      comm.broadcast(a.call, a.whole, 0);
      break;
    case Collective::kScatter:
      comm.scatter(a.call, a.pieces, 0);
      break;
    case Collective::kGather:
      comm.gather(a.call, a.whole, 0);
      break;
    case Collective::kPermute:
      comm.permute(a.call, a.whole, a.neighbours);
      break;
    case Collective::kBarrier:
      comm.barrier(a.call);
      break;
  }
}

CallArguments arguments_of(Collective c, const Groups& groups, int64_t bytes) {
  const World& world = groups.mesh.world();
  const RankGroups& group = groups.group();
  // Pieces that a rank receives, and how many of them: an all-reduce is a reduce-scatter and an all-gather.
  const int64_t others = group.size - 1;
  int64_t received = 1;
  if (c == Collective::kAllGather || c == Collective::kReduceScatter || c == Collective::kAllToAll ||
      c == Collective::kGather) {
    received = others;
  }
  int64_t piece = std::max<int64_t>(1, bytes / (4 * received));
  if (c == Collective::kAllReduce) piece = std::max<int64_t>(1, bytes * group.size / (8 * others));
  CallArguments a;
  a.bytes = c == Collective::kBarrier ? 0 : 4 * piece * received;
  if (c == Collective::kAllReduce) a.bytes = 8 * piece * others / group.size;

  a.call.group = &group;
  a.call.ranks = groups.mesh.local_ranks();
  a.call.event.cause.op = "calibrate";
  a.call.event.cause.implicit = false;
  a.call.event.bytes = a.bytes;
  for (int64_t rank : a.call.ranks) {
    a.whole.push_back(at::ones({piece}, at::TensorOptions().device(world.device(rank))));
    auto& list = a.pieces.emplace_back();
    for (int64_t p = 0; p < group.size; ++p)
      list.push_back(at::ones({piece}, at::TensorOptions().device(world.device(rank))));
  }
  for (int64_t p = 0; p < group.size; ++p) a.neighbours.push_back((p + 1) % group.size);
  return a;
}

}  // namespace dtensor::tools
