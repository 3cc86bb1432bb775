#include <ATen/ops/ones_like.h>

#include "benchmarks/measure.h"
#include "benchmarks/mlp_step.h"
#include "benchmarks/processes/parts.h"

namespace dtensor::benchmarks {
namespace {

const MlpSizes kSizes[] = {{8, 8, 16, 128}, {8, 128, 256, 2048}};

std::string step_name(const MlpSizes& s) { return "step of " + name_of(s); }

// One rank's part, with the collectives of `peer`.
std::function<void()> step_by_hand(const MlpInputs& in, Peer& peer) {
  return [&peer, x = in.x, up = in.up[0].clone().requires_grad_(), down = in.down[0].clone().requires_grad_()] {
    up.mutable_grad() = down.mutable_grad() = at::Tensor();
    const at::Tensor y = x.mm(up).relu().mm(down);
    at::Tensor sum = y.detach();
    peer.all_reduce(sum, sum);
    y.backward(at::ones_like(sum));
  };
}

void run_mlp(const RankSetup& setup) {
  for (const MlpSizes& s : kSizes) {
    const MlpInputs inputs = make_mlp_inputs(s, static_cast<int64_t>(setup.mesh.local_ranks().size()));
    std::vector<Way> ways = {{kOurs, our_mlp_step(inputs, setup.mesh)}};
    for (const auto& peer : setup.peers) ways.push_back({peer->name(), step_by_hand(inputs, *peer)});
    time_ways(step_name(s), ways, 7, 3);
  }
}

void report_mlp(int ranks, const Figures& figures, Gates& gates) {
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
  for (const MlpSizes& s : kSizes) {
    const Measured m{step_name(s), figures, time_calls(our_mlp_step(make_mlp_inputs(s, ranks), mesh))};
    add_row_of_one_process(m, kGloo, s.tokens <= 8 ? 20 : 0, gates);
    add_row_of_one_process(m, kMpi, 0, gates);
    for (const char* peer : {kGloo, kMpi}) add_row_of_processes(m, peer, gates);
  }
}

}  // namespace

Part mlp_part() { return {"mlp", {8}, {kMpi}, run_mlp, report_mlp}; }

}  // namespace dtensor::benchmarks
