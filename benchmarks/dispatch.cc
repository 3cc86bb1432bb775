// Measures the overhead of a call on a distributed tensor over the same call on a plain one. The tensors are small, so
// that the time is that of the library and of ATen's dispatcher, not of arithmetic.
//
//   ./bazelw run //benchmarks:dispatch
//
// "add/local(4)" is add on 4 ranks in this process, one after another on one thread. Labels give the ratio to the plain
// call, or the plan of a redistribution.

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "propagation/strategy_cache.h"

using namespace dtensor;

namespace {

using Call = std::function<void()>;

constexpr int64_t kRows = 8;

DeviceMesh mesh_of(int64_t ranks) { return DeviceMesh(World::local(ranks), {ranks}, {"tp"}); }

at::Tensor make(std::vector<int64_t> sizes, int64_t ranks, const Placements& placements) {
  const at::Tensor t = torch::randn(sizes);
  return ranks == 0 ? t : distribute_tensor(t, mesh_of(ranks), placements);
}

// Makes the call to be timed. ranks == 0: on plain tensors.
struct Operator {
  std::string name;
  std::function<Call(int64_t ranks)> make_call;
};

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = {
      {"add",
       [](int64_t ranks) -> Call {
         const auto x = make({kRows, 8}, ranks, {Shard(0)});
         return [=] { benchmark::DoNotOptimize(x.add(x)); };
       }},
      {"add_",
       [](int64_t ranks) -> Call {
         const auto x = make({kRows, 8}, ranks, {Shard(0)});
         const auto y = x.mul(0);
         return [=] { x.add_(y); };
       }},
      {"mm_8x8",
       [](int64_t ranks) -> Call {
         const auto x = make({kRows, 8}, ranks, {Shard(0)});
         // On the mesh of x: meshes of two worlds do not mix.
         const auto w = torch::randn({8, 8});
         const auto y = ranks == 0 ? w : distribute_tensor(w, DTensor(x).mesh(), {Replicate()});
         return [=] { benchmark::DoNotOptimize(x.mm(y)); };
       }},
      {"view",
       [](int64_t ranks) -> Call {
         const auto x = make({kRows, 8}, ranks, {Shard(0)});
         return [=] { benchmark::DoNotOptimize(x.view({kRows, 2, 4})); };
       }},
      {"detach",
       [](int64_t ranks) -> Call {
         const auto x = make({kRows, 8}, ranks, {Shard(0)});
         return [=] { benchmark::DoNotOptimize(x.detach()); };
       }},
      {"embedding_row_wise",
       [](int64_t ranks) -> Call {
         const auto table = make({64, 8}, ranks, {Shard(0)});
         const auto plain = torch::arange(8);
         const auto ids = ranks == 0 ? plain : distribute_tensor(plain, DTensor(table).mesh(), {Replicate()});
         return [=] { benchmark::DoNotOptimize(torch::embedding(table, ids)); };
       }},
  };
  return all;
}

// Time of the plain call in seconds, measured once per operator.
double plain_seconds(const Operator& op) {
  static std::map<std::string, double> known;
  auto [it, is_new] = known.try_emplace(op.name, 0);
  if (is_new) {
    constexpr int kCalls = 20000;
    const Call call = op.make_call(0);
    for (int i = 0; i < kCalls; ++i) call();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    it->second = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kCalls;
  }
  return it->second;
}

void time_operator(benchmark::State& state, const Operator& op, int64_t ranks) {
  torch::NoGradGuard no_grad;
  const double plain = plain_seconds(op);
  const Call call = op.make_call(ranks);
  call();  // decides; from now on the strategy cache has it
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) call();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (ranks == 0) return;
  char label[64];
  std::snprintf(label, sizeof label, "%.1f x plain", seconds / static_cast<double>(state.iterations()) / plain);
  state.SetLabel(label);
}

void time_redistribute(benchmark::State& state, const Placement& from, const Placement& to) {
  torch::NoGradGuard no_grad;
  const int64_t size = state.range(0);
  const DeviceMesh mesh = mesh_of(4);
  const auto replicated = distribute_tensor(torch::randn({size, size}), mesh, {Replicate()});
  const auto x = redistribute(replicated, {from});
  const RedistributePlan plan = plan_of(x, {to});
  for (auto _ : state) {
    // Locals of its own each time: a tensor remembers its reduction.
    const auto fresh = from_local(DTensor(x).locals(), mesh, {from});
    benchmark::DoNotOptimize(redistribute(fresh, {to}));
  }
  state.SetLabel(plan.to_string());
}

void time_cache(benchmark::State& state, bool hit) {
  torch::NoGradGuard no_grad;
  const DeviceMesh mesh = mesh_of(4);
  const auto x = distribute_tensor(torch::randn({8, 8}), mesh, {Shard(0)});
  const auto y = distribute_tensor(torch::randn({8, 8}), mesh, {Replicate()});
  StrategyCache& cache = strategy_cache(mesh.world());
  benchmark::DoNotOptimize(x.mm(y));
  cache.reset_counts();
  // A miss also pays for clearing the one entry.
  for (auto _ : state) {
    if (!hit) cache.clear();
    benchmark::DoNotOptimize(x.mm(y));
  }
  const CacheStats stats = cache.stats();
  const bool as_meant = hit ? stats.misses == 0 : stats.hits == 0;
  if (!as_meant) state.SkipWithError("the cache did not behave as meant");
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  for (const Operator& op : operators()) {
    for (const int64_t ranks : {0, 1, 4}) {
      const std::string where = ranks == 0 ? "plain" : "local(" + std::to_string(ranks) + ")";
      benchmark::RegisterBenchmark((op.name + "/" + where).c_str(),
                                   [&op, ranks](benchmark::State& state) { time_operator(state, op, ranks); });
    }
  }
  benchmark::RegisterBenchmark("redistribute/S(0)->S(1)",
                               [](benchmark::State& state) { time_redistribute(state, Shard(0), Shard(1)); })
      ->Arg(8)
      ->Arg(512);
  benchmark::RegisterBenchmark("redistribute/P->R",
                               [](benchmark::State& state) { time_redistribute(state, Partial(), Replicate()); })
      ->Arg(8)
      ->Arg(512);
  benchmark::RegisterBenchmark("strategy_cache/hit", [](benchmark::State& state) { time_cache(state, true); });
  benchmark::RegisterBenchmark("strategy_cache/miss", [](benchmark::State& state) { time_cache(state, false); });
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
