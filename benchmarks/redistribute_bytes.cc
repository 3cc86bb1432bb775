// Bytes and memory of plans, compared with the minimum and with PyTorch's greedy plans.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "absl/strings/str_join.h"
#include "benchmarks/redistribute_tables.h"
#include "plan/redistribute_planner.h"
#include "tests/testing/peers.h"

namespace dtensor::benchmarks {
namespace {

class Geomean {
 public:
  void add(double ratio) {
    log_sum_ += std::log(ratio);
    ++count_;
  }
  void add(const Geomean& other) {
    log_sum_ += other.log_sum_;
    count_ += other.count_;
  }
  double value() const { return count_ == 0 ? 1 : std::exp(log_sum_ / static_cast<double>(count_)); }
  int64_t count() const { return count_; }

 private:
  double log_sum_ = 0;
  int64_t count_ = 0;
};

// The largest ratio, and where.
struct Worst {
  double ratio = 1;
  std::string pair = "-";
  void offer(double r, const Placements& from, const Placements& to) {
    if (r > ratio * (1 + 1e-12)) ratio = r, pair = pair_text(from, to);
  }
};

struct Totals {
  Geomean bytes, peak;
  Geomean greedy, greedy_exchange;  // where Shard(i) -> Shard(j) gathers, and where it is one all-to-all
  int64_t needless = 0;             // plans that communicate where nothing needs to be
};

Totals compare(const std::vector<int64_t>& mesh_shape, const Shape& sizes) {
  int64_t ranks = 1;
  for (int64_t n : mesh_shape) ranks *= n;
  const DeviceMesh mesh(World::abstract(ranks), mesh_shape);
  const TensorMeta meta{sizes, row_major_strides(sizes), at::kFloat};
  testing::PlanPeers peers(mesh, meta);
  Totals totals;
  Worst bytes, peak;
  int64_t pairs = 0;
  const std::vector<Placements> layouts = all_layouts(mesh.ndim());
  for (const Placements& from : layouts) {
    for (const Placements& to : layouts) {
      if (from == to) continue;
      ++pairs;
      const RedistributePlan plan = plan_redistribution(mesh, meta, from, to);
      const int64_t bound = peers.bound(from, to).bytes;
      if (bound == 0) {
        totals.needless += plan.bytes > 0;
      } else {
        const double ratio = static_cast<double>(plan.bytes) / static_cast<double>(bound);
        totals.bytes.add(ratio);
        bytes.offer(ratio, from, to);
      }
      const int64_t ends = std::max(peers.largest_part(from), peers.largest_part(to));
      int64_t largest = ends;
      for (const RedistributeStep& step : plan.steps) largest = std::max(largest, peers.largest_part(step.after));
      totals.peak.add(static_cast<double>(largest) / static_cast<double>(ends));
      peak.offer(static_cast<double>(largest) / static_cast<double>(ends), from, to);
      for (const bool exchanges : {false, true}) {
        const int64_t greedy = peers.greedy(from, to, exchanges).bytes;
        if (greedy == plan.bytes || plan.bytes == 0) continue;
        (exchanges ? totals.greedy_exchange : totals.greedy)
            .add(static_cast<double>(greedy) / static_cast<double>(plan.bytes));
      }
    }
  }
  std::printf("%-8s %-16s %6lld %8.4f %7.2f  %-26s %8.4f %7.2f  %-26s %8.3f %6lld %8.3f %6lld\n",
              absl::StrJoin(mesh_shape, "x").c_str(), absl::StrJoin(sizes, "x").c_str(), static_cast<long long>(pairs),
              totals.bytes.value(), bytes.ratio, bytes.pair.c_str(), totals.peak.value(), peak.ratio, peak.pair.c_str(),
              totals.greedy.value(), static_cast<long long>(totals.greedy.count()), totals.greedy_exchange.value(),
              static_cast<long long>(totals.greedy_exchange.count()));
  std::fflush(stdout);
  return totals;
}

}  // namespace

std::vector<Placements> all_layouts(int64_t mesh_ndim) {
  const Placement choices[] = {Replicate(), Shard(0), Shard(1), Shard(2), Partial()};
  std::vector<Placements> layouts = {{}};
  for (int64_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : layouts) {
      for (const Placement& p : choices) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    layouts = std::move(longer);
  }
  return layouts;
}

std::string pair_text(const Placements& from, const Placements& to) { return to_string(from) + "->" + to_string(to); }

void bytes_table(bool quick, Gates& gates) {
  using Shapes = std::vector<std::vector<int64_t>>;
  const Shapes meshes =
      quick ? Shapes{{3}, {4}, {2, 2}, {3, 2}} : Shapes{{2}, {3}, {4}, {8}, {2, 2}, {3, 2}, {2, 4}, {4, 2}, {2, 2, 2}};
  std::printf(
      "Bytes received per rank, of all pairs of layouts out of R, S(0), S(1), S(2), P on each mesh dim; float32.\n");
  std::printf("%-8s %-16s %6s %-43s  %-43s  %-15s %s\n", "", "", "", "bytes / least possible",
              "largest part / that of both ends", "greedy / ours", "the same, with");
  std::printf("%-8s %-16s %6s %8s %7s  %-26s %8s %7s  %-26s %8s %6s %s\n", "mesh", "tensor", "pairs", "geomean",
              "worst", "", "geomean", "worst", "", "geomean", "differ", "all-to-all");
  Totals all, line;
  for (const auto& mesh : meshes) {
    // The first divides by everything here, the second by nothing.
    for (const Shape& sizes : {Shape{480, 240, 960}, Shape{487, 241, 967}}) {
      const Totals totals = compare(mesh, sizes);
      for (Totals* sum : {&all, &line}) {
        if (sum == &line && mesh.size() > 1) continue;
        sum->bytes.add(totals.bytes);
        sum->peak.add(totals.peak);
        sum->greedy.add(totals.greedy);
        sum->greedy_exchange.add(totals.greedy_exchange);
        sum->needless += totals.needless;
      }
    }
  }
  gates.at_most("bytes / least possible, geomean", all.bytes.value(), 1.10);
  gates.at_most("bytes / least possible on one mesh dim, geomean", line.bytes.value(), 1.0 + 1e-9);
  gates.at_most("plans that communicate without need", static_cast<double>(all.needless), 0);
  gates.at_most("largest part on the way / at the ends, geomean", all.peak.value(), 1.05);
  gates.at_least("PyTorch's greedy plans / ours where they differ, geomean", all.greedy.value(), 1.22);
  gates.at_least("the same where Shard to Shard is an all-to-all there, too", all.greedy_exchange.value(), 1.22);
}

}  // namespace dtensor::benchmarks
