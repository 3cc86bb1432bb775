// Measures what ranks that share one GPU compute and communicate, compared with the same written by hand.
//
//   ./bazelw run //benchmarks:gpu
//
// Both run in turn; a figure is the median of the ratios of calls that ran one after the other. Times are those between
// events of the GPU, but for calls whose time is that of the host. The program needs libtorch_cuda loaded, as by
// LD_PRELOAD; without a GPU it says so, and measures nothing.
#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, repetitions, 31, "calls of each kind that are timed");

namespace {

using namespace dtensor;
using benchmarks::Comparison;

const c10::Device kGpu(c10::kCUDA, 0);

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, at::TensorOptions().device(kGpu)).to(dtype);
}

struct Figures {
  double ours, theirs, limit, speedup, of_limit;  // theirs / ours, ours / limit
};

Figures measure(const std::function<void()>& ours, const std::function<void()>& theirs,
                const std::function<void()>& limit) {
  const auto times = benchmarks::time_turns({ours, theirs, limit}, absl::GetFlag(FLAGS_repetitions), kGpu);
  return {benchmarks::median_microseconds(times[0]), benchmarks::median_microseconds(times[1]),
          benchmarks::median_microseconds(times[2]), benchmarks::median_ratio(times[1], times[0]),
          benchmarks::median_ratio(times[0], times[2])};
}

// Addends of several ranks: every rank gets the sum, or its rows of it. The limit is the copying of as many bytes.
void measure_sums(benchmarks::Gates& gates, int64_t ranks, at::ScalarType dtype) {
  constexpr int64_t kRows = 4096, kColumns = 4096;
  const DeviceMesh mesh(World::local(ranks, kGpu), {ranks});
  std::vector<at::Tensor> addends, copies;
  for (int64_t i = 0; i < ranks; ++i) addends.push_back(random({kRows, kColumns}, dtype));
  for (const at::Tensor& t : addends) copies.push_back(at::empty_like(t));
  const at::Tensor x = from_local(addends, mesh, {Partial()});
  const auto add_all = [&] {
    at::Tensor sum = at::add(addends[0], addends[1]);
    for (int64_t i = 2; i < ranks; ++i) sum.add_(addends[i]);
    return sum;
  };
  const std::string what = " of " + std::to_string(ranks) + " ranks' " + std::to_string(kRows) + " x " +
                           std::to_string(kColumns) + " " + c10::toString(dtype);
  const auto report = [&](const std::string& workload, const Figures& f) {
    gates.at_least({.workload = workload + what,
                    .peer = "ATen's add and copies",
                    .unit = "us",
                    .theirs = f.theirs,
                    .ours = f.ours,
                    .limit = f.limit},
                   f.speedup, ranks > 2 ? 1.5 : 1);
    gates.at_most(workload + what + ": time / time of copying", f.of_limit, 1.25);
  };
  report("all_reduce", measure([&] { redistribute(x, {Replicate()}); },
                               [&] {
                                 const at::Tensor sum = add_all();
                                 for (int64_t i = 1; i < ranks; ++i) at::empty_like(sum).copy_(sum);
                               },
                               [&] {
                                 for (int64_t i = 0; i < ranks; ++i) at::empty_like(copies[i]).copy_(addends[i]);
                               }));
  const int64_t rows = kRows / ranks;
  report("reduce_scatter", measure([&] { redistribute(x, {Shard(0)}); },
                                   [&] {
                                     const at::Tensor sum = add_all();
                                     for (int64_t i = 0; i < ranks; ++i) sum.narrow(0, i * rows, rows).clone();
                                   },
                                   [&] {  // all addends are read, and one is written
                                     for (int64_t i = 0; i < ranks / 2; ++i) copies[i].copy_(addends[i]);
                                     copies[0].narrow(0, 0, kRows / 2).copy_(addends[0].narrow(0, 0, kRows / 2));
                                   }));
}

// A linear layer split over the ranks; by hand the same products, one after the other.
void measure_linear(benchmarks::Gates& gates, int64_t ranks, int64_t width) {
  const DeviceMesh mesh(World::local(ranks, kGpu), {ranks});
  const at::Tensor x = random({width, width}, at::kBFloat16), weight = random({width, width}, at::kBFloat16),
                   bias = random({width}, at::kBFloat16);
  const at::Tensor dx = distribute_tensor(x, mesh, {Replicate()}), dw = distribute_tensor(weight, mesh, {Shard(0)}),
                   db = distribute_tensor(bias, mesh, {Shard(0)});
  std::vector<at::Tensor> weights = weight.chunk(ranks), biases = bias.chunk(ranks);
  const Figures f = measure([&] { at::linear(dx, dw, db); },
                            [&] {
                              for (int64_t i = 0; i < ranks; ++i) at::linear(x, weights[i], biases[i]);
                            },
                            [&] { at::linear(x, weight, bias); });
  const std::string size = std::to_string(width);
  gates.at_most({.workload = "linear of " + size + " x " + size + " x " + size + " BFloat16, split over " +
                             std::to_string(ranks) + " ranks",
                 .peer = "ATen's linear on each part",
                 .unit = "us",
                 .theirs = f.theirs,
                 .ours = f.ours,
                 .limit = f.limit},
                1 / f.speedup, 1.03);
}

// What a small call takes of the host's time, next to ATen's.
void measure_calls(benchmarks::Gates& gates) {
  const DeviceMesh mesh(World::local(1, kGpu), {1});
  const at::Tensor x = random({10, 10}, at::kFloat), dx = distribute_tensor(x, mesh, {Shard(0)});
  const auto report = [&](const std::string& name, const std::function<void(const at::Tensor&)>& call) {
    const auto times = benchmarks::time_pairs([&] { call(dx); }, [&] { call(x); });
    gates.note(benchmarks::compared(name + " of 10 x 10 on one rank, the host's time", "ATen on the GPU", times),
               times.ratio);
  };
  report("add", [](const at::Tensor& t) { at::add(t, t); });
  report("add_", [](const at::Tensor& t) { at::Tensor(t).add_(t, 0); });
  report("matmul", [](const at::Tensor& t) { at::matmul(t, t); });
  report("view", [](const at::Tensor& t) { t.view({100}); });
}

int run() {
  benchmarks::Gates gates;
  if (at::getNumGPUs() == 0) {
    gates.skip("ranks that share a GPU", "no CUDA device here");
    return gates.close();
  }
  const c10::InferenceMode inference;
  for (const int64_t ranks : {2, 4, 8}) measure_sums(gates, ranks, at::kFloat);
  measure_sums(gates, 4, at::kBFloat16);
  measure_linear(gates, 4, 8192);
  measure_linear(gates, 1, 4096);
  measure_calls(gates);
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("gpu", "Times what ranks that share a GPU compute and communicate.", argc, argv,
                                     run);
}
