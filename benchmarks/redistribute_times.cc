// How long planning takes, and how long redistribute() takes in one process.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "benchmarks/redistribute_tables.h"
#include "dtensor/dtensor.h"
#include "plan/redistribute_planner.h"

namespace dtensor::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Median over all pairs of the best time of each.
double plan_time(const std::vector<int64_t>& mesh_shape, int64_t ranks) {
  const DeviceMesh mesh(World::abstract(ranks), mesh_shape);
  const Shape sizes = {4096, 4096, 4096};
  const TensorMeta meta{sizes, row_major_strides(sizes), at::kFloat};
  const std::vector<Placements> layouts = all_layouts(mesh.ndim());
  std::vector<double> best;
  const int sweeps =
      mesh.ndim() < 3 ? 20 : 5;  // over all pairs, so that a slow moment of the machine hits none of them twice
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    size_t i = 0;
    for (const Placements& from : layouts) {
      for (const Placements& to : layouts) {
        if (from == to) continue;
        const auto begin = Clock::now();
        benchmark::DoNotOptimize(plan_redistribution(mesh, meta, from, to));
        const double seconds = seconds_since(begin);
        if (sweep == 0) best.push_back(seconds);
        best[i] = std::min(best[i], seconds);
        ++i;
      }
    }
  }
  const size_t slowest = static_cast<size_t>(std::max_element(best.begin(), best.end()) - best.begin());
  std::string slowest_pair;
  size_t i = 0;
  for (const Placements& from : layouts) {
    for (const Placements& to : layouts) {
      if (from != to && i++ == slowest) slowest_pair = pair_text(from, to);
    }
  }
  std::vector<double> sorted = best;
  std::sort(sorted.begin(), sorted.end());
  std::printf("%-10s %6lld %6zu %10.1f %10.1f %10.1f  %s\n", absl::StrJoin(mesh_shape, "x").c_str(),
              static_cast<long long>(ranks), best.size(), median(best) * 1e6, sorted[sorted.size() * 99 / 100] * 1e6,
              best[slowest] * 1e6, slowest_pair.c_str());
  std::fflush(stdout);
  return median(best);
}

double cached_plan_time() {
  const DeviceMesh mesh(World::abstract(256), {16, 16});
  const SpecPtr spec = Spec::get(mesh, {Shard(0), Replicate()}, {4096, 4096}, at::kFloat);
  const Placements to = {Replicate(), Shard(1)};
  double best = 1;
  for (int repetition = 0; repetition < 1000;
       ++repetition) {  // short ones: between two interruptions by other programs
    constexpr int kCalls = 500;
    const auto begin = Clock::now();
    for (int i = 0; i < kCalls; ++i) benchmark::DoNotOptimize(cached_plan(spec, to));
    best = std::min(best, seconds_since(begin) / kCalls);
  }
  return best;
}

// A hand-written loop for the same change of a square matrix of side n over 2 or 4 ranks, which divide it.
std::vector<at::Tensor> by_hand(const Placement& from, const Placement& to, const std::vector<at::Tensor>& locals,
                                int64_t n) {
  const auto ranks = static_cast<int64_t>(locals.size());
  const int64_t part = n / ranks;  // rows or columns of a rank
  std::vector<const float*> in;
  for (const auto& local : locals) in.push_back(local.const_data_ptr<float>());
  std::vector<at::Tensor> results;
  std::vector<float*> out;
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t rows = to == Shard(0) ? part : n, columns = to == Shard(1) ? part : n;
    results.push_back(at::empty({rows, columns}, at::kFloat));
    out.push_back(results.back().mutable_data_ptr<float>());
  }
  const auto copy = [](float* target, const float* source, int64_t numel) {
    std::memcpy(target, source, static_cast<size_t>(numel) * sizeof(float));
  };
  const auto add_up = [&](float* target, int64_t begin, int64_t numel) {  // in one pass
    constexpr int64_t kBlock = 1024;  // a known length, which compilers vectorise; divides all that is added here
    for (int64_t at = 0; at < numel; at += kBlock) {
      float* __restrict sum = target + at;
      const float *a = in[0] + begin + at, *b = in[1] + begin + at;
      if (ranks == 2) {
        for (int64_t i = 0; i < kBlock; ++i) sum[i] = a[i] + b[i];
      } else {
        const float *c = in[2] + begin + at, *d = in[3] + begin + at;
        for (int64_t i = 0; i < kBlock; ++i) sum[i] = a[i] + b[i] + c[i] + d[i];
      }
    }
  };
  for (int64_t r = 0; r < ranks; ++r) {
    if (from.is_partial()) {
      if (to == Shard(0)) {
        add_up(out[r], r * part * n, part * n);
      } else if (r == 0) {
        add_up(out[0], 0, n * n);
      } else {
        copy(out[r], out[0], n * n);
      }
      continue;
    }
    for (int64_t s = 0; s < ranks; ++s) {
      if (from == Shard(0) && to.is_replicate()) {
        copy(out[r] + s * part * n, in[s], part * n);
      } else if (from == Shard(0)) {
        for (int64_t i = 0; i < part; ++i) copy(out[r] + (s * part + i) * part, in[s] + i * n + r * part, part);
      } else {
        for (int64_t i = 0; i < n; ++i) copy(out[r] + i * n + s * part, in[s] + i * part, part);
      }
    }
  }
  return results;
}

void compare_wall(int64_t ranks, const Placement& from, const Placement& to, int64_t n, Gates& gates) {
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
  std::vector<at::Tensor> locals;
  for (int64_t r = 0; r < ranks; ++r) {
    locals.push_back(at::rand({from == Shard(0) ? n / ranks : n, from == Shard(1) ? n / ranks : n}, at::kFloat));
  }
  std::vector<double> ours, hand;
  double spent = 0;
  while (ours.size() < 21 || (spent < 0.1 && ours.size() < 2001)) {
    const at::Tensor x = from_local(locals, mesh, {from});  // a new tensor each time, since its reduction is cached
    at::Tensor y;
    std::vector<at::Tensor> results;
    const auto time_ours = [&] {
      const auto begin = Clock::now();
      y = redistribute(x, {to});
      ours.push_back(seconds_since(begin));
    };
    const auto time_hand = [&] {
      const auto begin = Clock::now();
      results = by_hand(from, to, locals, n);
      hand.push_back(seconds_since(begin));
    };
    // Either goes first half of the time: the second finds less memory in the cache.
    if (ours.size() % 2 == 0) {
      time_ours();
      time_hand();
    } else {
      time_hand();
      time_ours();
    }
    spent += ours.back() + hand.back();
    if (ours.size() > 1) continue;
    for (int64_t r = 0; r < ranks; ++r) {
      TORCH_CHECK(at::equal(to_local(y)[r], results[r]), "by hand something else comes out");
    }
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / hand[i]);
  const std::string workload = absl::StrCat("redistribute() ", pair_text({from}, {to}), " of ", n, " x ", n, " over ",
                                            ranks, " ranks of one process");
  const double ratio = median(ratios);
  gates.at_most(compared(workload, "loops by hand", {median(ours) * 1e6, median(hand) * 1e6, ratio}), ratio, 1.3);
}

}  // namespace

void plan_time_table(Gates& gates) {
  std::printf(
      "\nTime of one plan in microseconds, not remembered: of all pairs of layouts, the best of several each.\n");
  std::printf("%-10s %6s %6s %10s %10s %10s\n", "mesh", "ranks", "pairs", "median", "99 %", "worst");
  struct Case {
    std::vector<int64_t> mesh;
    int64_t ranks;
    double limit;
  };
  for (const Case& c : std::initializer_list<Case>{{{256}, 256, 20e-6},
                                                   {{4096}, 4096, 20e-6},
                                                   {{16, 16}, 256, 60e-6},
                                                   {{64, 64}, 4096, 60e-6},
                                                   {{4, 8, 8}, 256, 200e-6},
                                                   {{16, 16, 16}, 4096, 200e-6}}) {
    const double seconds = plan_time(c.mesh, c.ranks);
    gates.at_most("microseconds of a plan on " + absl::StrJoin(c.mesh, "x"), seconds * 1e6, c.limit * 1e6);
  }
  gates.at_most("microseconds of a remembered plan", cached_plan_time() * 1e6, 0.2);
}

void wall_table(Gates& gates) {
  keep_released_memory();
  for (const int64_t ranks : {4, 2}) {
    for (const auto& [from, to] : std::initializer_list<std::pair<Placement, Placement>>{{Shard(0), Replicate()},
                                                                                         {Shard(0), Shard(1)},
                                                                                         {Shard(1), Replicate()},
                                                                                         {Partial(), Replicate()},
                                                                                         {Partial(), Shard(0)}}) {
      for (const int64_t n : {128, 512, 4096}) compare_wall(ranks, from, to, n, gates);
    }
  }
}

}  // namespace dtensor::benchmarks
