// Measures many ranks in one process: a step of a tensor-parallel MLP, forward and backward, on World::local, next to
// loops by hand over the same plain tensors; and ranks that compute at the same time next to one after the other.
//
//   ./bazelw run //benchmarks:local_ranks
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Sizes {
  int64_t ranks, tokens, width, hidden;  // `hidden` of all ranks together
  double gate;                           // of ours / by hand; 0: none
};

// The parts of the weights, one per rank; the input is the same on all.
struct Inputs {
  at::Tensor x;
  Tensors up, down;
};

Inputs make_inputs(const Sizes& s) {
  Inputs in;
  in.x = at::randn({s.tokens, s.width});
  for (int64_t r = 0; r < s.ranks; ++r) {
    in.up.push_back(at::randn({s.width, s.hidden / s.ranks}));
    in.down.push_back(at::randn({s.hidden / s.ranks, s.width}));
  }
  return in;
}

std::function<void()> our_step(const Inputs& in, const DeviceMesh& mesh) {
  const Tensors copies(in.up.size(), in.x);
  return [x = from_local(copies, mesh, {Replicate()}), up = from_local(in.up, mesh, {Shard(1)}).requires_grad_(),
          down = from_local(in.down, mesh, {Shard(0)}).requires_grad_()] {
    up.mutable_grad() = down.mutable_grad() = at::Tensor();
    const at::Tensor y = redistribute(x.mm(up).relu().mm(down), {Replicate()});
    y.backward(at::ones_like(y));
  };
}

// The same calls on each rank's tensors, a loop that adds up the results, and a copy for each rank.
std::function<void()> step_by_hand(const Inputs& in) {
  Tensors up, down;
  for (size_t r = 0; r < in.up.size(); ++r) {
    up.push_back(in.up[r].clone().requires_grad_());
    down.push_back(in.down[r].clone().requires_grad_());
  }
  return [x = in.x, up, down] {
    Tensors parts, results;
    for (size_t r = 0; r < up.size(); ++r) {
      up[r].mutable_grad() = down[r].mutable_grad() = at::Tensor();
      parts.push_back(x.mm(up[r]).relu().mm(down[r]));
    }
    const at::Tensor sum = parts[0].detach().clone();
    for (size_t r = 1; r < parts.size(); ++r) sum.add_(parts[r].detach());
    for (size_t r = 0; r < parts.size(); ++r) results.push_back(at::empty_like(sum).copy_(sum));
    for (size_t r = 0; r < parts.size(); ++r) parts[r].backward(at::ones_like(results[r]));
  };
}

std::string name_of(const Sizes& s) {
  return absl::StrCat("step of an MLP on ", s.ranks, " ranks of one process, ", s.tokens, " tokens, ", s.width, " x ",
                      s.hidden);
}

// On all threads of LibTorch: the ranks' parts at the same time, and one after the other.
void compare_parallel_ranks(Gates& gates) {
  for (const Sizes& s : {Sizes{8, 128, 256, 2048, 0}, Sizes{64, 64, 128, 2048, 0}, Sizes{8, 1024, 1024, 4096, 0}}) {
    const DeviceMesh mesh(World::local(s.ranks), {s.ranks}, {"tp"});
    const std::function<void()> step = our_step(make_inputs(s), mesh);
    const auto as = [&](bool parallel) {
      return [&step, parallel] {
        set_parallel_ranks(parallel);
        step();
      };
    };
    const PairedTimes times = time_pairs(as(true), as(false), 20);
    set_parallel_ranks(false);
    gates.note(compared(absl::StrCat(name_of(s), ", in parallel on ", at::get_num_threads(), " threads"),
                        "one rank after the other", times),
               times.ratio);
  }
}

int run() {
  Gates gates;
  compare_parallel_ranks(gates);
  at::set_num_threads(1);
  for (const Sizes& s : {Sizes{8, 128, 256, 2048, 1.1}, Sizes{64, 64, 128, 2048, 0}, Sizes{512, 8, 16, 1024, 1.3}}) {
    const DeviceMesh mesh(World::local(s.ranks), {s.ranks}, {"tp"});
    const Inputs inputs = make_inputs(s);
    const PairedTimes times = time_pairs(our_step(inputs, mesh), step_by_hand(inputs), 50);
    const Comparison row = compared(name_of(s), "loops by hand", times);
    s.gate > 0 ? gates.at_most(row, times.ratio, s.gate) : gates.note(row, times.ratio);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("local_ranks", "Times many ranks in one process next to loops by hand.", argc,
                                     argv, dtensor::benchmarks::run);
}
