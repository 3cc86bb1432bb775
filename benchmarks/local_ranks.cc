// Measures many ranks in one process: a tensor-parallel MLP, a step and forward alone, on World::local, next to loops
// by hand over the same plain tensors; and ranks that compute at the same time next to one after the other.
//
//   ./bazelw run //benchmarks:local_ranks
#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones_like.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "benchmarks/mlp_step.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
namespace {

using Tensors = std::vector<at::Tensor>;

// The same calls on each rank's tensors, a loop that adds up the results, and a copy for each rank.
std::function<void()> step_by_hand(const MlpInputs& in) {
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

// Forward of column- and row-wise layers, without gradients. `to`: Replicate() or Shard(0) of the tokens.
std::function<void()> our_forward(const MlpInputs& in, const DeviceMesh& mesh, const Placement& to) {
  const Tensors copies(in.up.size(), in.x);
  return [x = from_local(copies, mesh, {Replicate()}), up = from_local(in.up, mesh, {Shard(1)}),
          down = from_local(in.down, mesh, {Shard(0)}), to] { redistribute(at::gelu(x.mm(up)).mm(down), {to}); };
}

// Two ranks: one pass adds up the results, and a copy follows if both ranks get all of it.
std::function<void()> forward_by_hand(const MlpInputs& in, const Placement& to) {
  return [in, to] {
    const at::Tensor a = at::gelu(in.x.mm(in.up[0])).mm(in.down[0]), b = at::gelu(in.x.mm(in.up[1])).mm(in.down[1]);
    if (to.is_replicate()) {
      const at::Tensor sum = at::add(a, b), copy = at::empty_like(sum).copy_(sum);
      return;
    }
    const int64_t half = a.size(0) / 2;
    const at::Tensor first = at::add(a.narrow(0, 0, half), b.narrow(0, 0, half)),
                     second = at::add(a.narrow(0, half, half), b.narrow(0, half, half));
  };
}

// Products take most of the time of large inputs, and calls most of that of small ones.
void compare_forward(Gates& gates) {
  for (const MlpSizes& s :
       {MlpSizes{2, 2, 512, 2048}, {2, 64, 512, 2048}, {2, 1024, 1024, 4096}, {2, 4096, 512, 2048}}) {
    const DeviceMesh mesh(World::local(s.ranks), {s.ranks}, {"tp"});
    const MlpInputs inputs = make_mlp_inputs(s, s.ranks);
    for (const Placement& to : {Placement(Replicate()), Placement(Shard(0))}) {
      const PairedTimes times =
          time_pairs(our_forward(inputs, mesh, to), forward_by_hand(inputs, to), s.tokens >= 1024 ? 12 : 50);
      gates.at_most(compared(absl::StrCat("forward of ", name_of(s), ", in one process, to ", to_string(to)),
                             "loops by hand", times),
                    times.ratio, s.tokens >= 1024 ? 1.03 : 1.3);
    }
  }
}

// On all threads of LibTorch: the ranks' parts at the same time, and one after the other.
void compare_parallel_ranks(Gates& gates) {
  for (const MlpSizes& s : {MlpSizes{8, 128, 256, 2048}, {64, 64, 128, 2048}, {8, 1024, 1024, 4096}}) {
    const DeviceMesh mesh(World::local(s.ranks), {s.ranks}, {"tp"});
    const std::function<void()> step = our_mlp_step(make_mlp_inputs(s, s.ranks), mesh);
    const auto as = [&](bool parallel) {
      return [&step, parallel] {
        set_parallel_ranks(parallel);
        step();
      };
    };
    const PairedTimes times = time_pairs(as(true), as(false), 20);
    set_parallel_ranks(false);
    gates.note(compared(absl::StrCat("step of ", name_of(s), ", in one process, in parallel on ", at::get_num_threads(),
                                     " threads"),
                        "one rank after the other", times),
               times.ratio);
  }
}

int run() {
  keep_memory_of_tensors();
  Gates gates;
  compare_parallel_ranks(gates);
  at::set_num_threads(1);
  compare_forward(gates);
  // With the gate of ours / by hand; 0: none.
  for (const auto& [s, gate] : std::initializer_list<std::pair<MlpSizes, double>>{
           {{8, 128, 256, 2048}, 1.1}, {{64, 64, 128, 2048}, 0}, {{512, 8, 16, 1024}, 1.3}}) {
    const DeviceMesh mesh(World::local(s.ranks), {s.ranks}, {"tp"});
    const MlpInputs inputs = make_mlp_inputs(s, s.ranks);
    const PairedTimes times = time_pairs(our_mlp_step(inputs, mesh), step_by_hand(inputs), 50);
    const Comparison row = compared(absl::StrCat("step of ", name_of(s), ", in one process"), "loops by hand", times);
    gate > 0 ? gates.at_most(row, times.ratio, gate) : gates.note(row, times.ratio);
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("local_ranks", "Times many ranks in one process next to loops by hand.", argc,
                                     argv, dtensor::benchmarks::run);
}
