#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "benchmarks/measure.h"
#include "benchmarks/processes/parts.h"
#include "comm/communicator.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

using internal::CommCall;
using internal::Communicator;
using internal::RankPieces;
using internal::RankTensors;

struct Collective {
  const char* name;
  // `inputs`: a tensor of each rank, and its pieces, one for each rank.
  void (*ours)(Communicator&, const CommCall&, const RankTensors& inputs, const RankPieces& pieces);
  void (Peer::*theirs)(const at::Tensor& in, at::Tensor& out);
  // Elements of the result, of an input of `numel`.
  int64_t (*result_numel)(int64_t numel, int64_t ranks);
};

RankPieces in_pieces(const RankTensors& inputs, int64_t ranks) {
  RankPieces pieces;
  for (const at::Tensor& t : inputs) {
    const std::vector<at::Tensor> chunks = t.chunk(ranks);
    pieces.emplace_back(chunks.begin(), chunks.end());
  }
  return pieces;
}

const Collective kCollectives[] = {
    {"all_reduce",
     [](Communicator& comm, const CommCall& call, const RankTensors& in, const RankPieces&) {
       comm.all_reduce(call, in, ReduceOp::kSum);
     },
     &Peer::all_reduce, [](int64_t numel, int64_t) { return numel; }},
    {"all_gather",
     [](Communicator& comm, const CommCall& call, const RankTensors& in, const RankPieces&) {
       comm.all_gather(call, in);
     },
     &Peer::all_gather, [](int64_t numel, int64_t ranks) { return numel * ranks; }},
    {"reduce_scatter",
     [](Communicator& comm, const CommCall& call, const RankTensors&, const RankPieces& pieces) {
       comm.reduce_scatter(call, pieces, ReduceOp::kSum);
     },
     &Peer::reduce_scatter, [](int64_t numel, int64_t ranks) { return numel / ranks; }},
    {"all_to_all",
     [](Communicator& comm, const CommCall& call, const RankTensors&, const RankPieces& pieces) {
       comm.all_to_all(call, pieces);
     },
     &Peer::all_to_all, [](int64_t numel, int64_t) { return numel; }},
};

std::vector<int64_t> sizes_in_bytes(int64_t ranks) {
  std::vector<int64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20};
  if (ranks == 2) sizes.push_back(64 << 20);
  return sizes;
}

// Of calls on so many bytes, which take about half a second.
struct Repetitions {
  int turns, calls;
};
Repetitions repetitions_for(int64_t bytes) {
  if (bytes <= 64 << 10) return {15, 20};
  return bytes <= 1 << 20 ? Repetitions{9, 5} : Repetitions{7, 2};
}

std::string name_of(const Collective& c, int64_t bytes, int64_t ranks) {
  return absl::StrCat(c.name, " of ", tools::human_bytes(bytes), ", ", ranks, " ranks");
}

// For all ranks that this process owns.
std::function<void()> our_call(const Collective& c, int64_t bytes, const DeviceMesh& mesh) {
  RankTensors inputs;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) inputs.push_back(at::ones({bytes / 4}));
  return [&c, mesh, inputs, pieces = in_pieces(inputs, mesh.size())] {
    CommCall call;
    call.group = &mesh.get_group(0);
    call.ranks = mesh.local_ranks();
    c.ours(mesh.world().communicator(), call, inputs, pieces);
  };
}

void run_collectives(const RankSetup& setup) {
  const int64_t ranks = setup.mesh.size();
  for (const Collective& c : kCollectives) {
    for (const int64_t bytes : sizes_in_bytes(ranks)) {
      std::vector<Way> ways = {{kOurs, our_call(c, bytes, setup.mesh)}};
      for (const auto& peer : setup.peers) {
        const auto call = [&c, &peer, in = at::ones({bytes / 4}),
                           out = at::empty({c.result_numel(bytes / 4, ranks)})]() mutable {
          ((*peer).*c.theirs)(in, out);
        };
        ways.push_back({peer->name(), call});
      }
      const Repetitions r = repetitions_for(bytes);
      time_ways(name_of(c, bytes, ranks), ways, r.turns, r.calls);
    }
  }
}

void report_collectives(int ranks, const Figures& figures, Gates& gates) {
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
  for (const Collective& c : kCollectives) {
    for (const int64_t bytes : sizes_in_bytes(ranks)) {
      const Measured m{name_of(c, bytes, ranks), figures, time_calls(our_call(c, bytes, mesh))};
      add_row_of_one_process(m, kGloo, bytes <= 4 << 10 ? 50 : 4, gates);
      // Open MPI's buffers are there before. A call of ours makes its results, which alone takes as long for small
      // ones.
      add_row_of_one_process(m, kMpi, bytes >= 64 << 10 ? 1 : 0, gates);
      for (const char* peer : {kGloo, kMpi}) add_row_of_processes(m, peer, gates);
    }
  }
}

}  // namespace

Part collectives_part() { return {"collectives", {2, 4}, {kMpi}, run_collectives, report_collectives}; }

}  // namespace dtensor::benchmarks
