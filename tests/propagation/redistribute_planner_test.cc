#include "propagation/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Catch::Matchers::StartsWith;
using Kind = RedistributeStep::Kind;

DeviceMesh mesh_of(std::vector<int64_t> shape) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  return DeviceMesh(World::abstract(size), std::move(shape));
}

TensorMeta meta_of(Shape sizes, c10::ScalarType dtype = at::kFloat) {
  return {sizes, contiguous_strides(sizes), dtype};
}

// "all_gather(0) 64": kind, mesh dims, bytes of each step.
std::string steps_of(const RedistributePlan& plan) {
  std::vector<std::string> steps;
  for (const RedistributeStep& step : plan.steps) {
    if (step.is_local()) {
      steps.push_back(step.kind == Kind::kSlice ? "slice" : "fill");
    } else {
      steps.push_back(absl::StrCat(std::string(to_string(step.collective())), "(", absl::StrJoin(step.dims, ","), ") ",
                                   step.bytes));
    }
  }
  return absl::StrJoin(steps, ", ");
}

struct Row {
  std::vector<int64_t> mesh;
  Shape sizes;
  const char* from;
  const char* to;
  const char* steps;
};

TEST_CASE("steps and bytes of plans") {
  const Row rows[] = {
      // Every pair on one mesh dim. A tensor of 256 bytes over 4 ranks.
      {{4}, {8, 8}, "R", "R", ""},
      {{4}, {8, 8}, "R", "S(0)", "slice"},
      {{4}, {8, 8}, "R", "_S(0, 2)", "slice"},
      {{4}, {8, 8}, "R", "P(sum)", "fill"},
      {{4}, {8, 8}, "R", "MaskP(sum, [10, 8], 0)", "fill"},
      {{4}, {8, 8}, "S(0)", "R", "all_gather(0) 192"},
      {{4}, {8, 8}, "S(0)", "S(0)", ""},
      {{4}, {8, 8}, "S(0)", "S(1)", "all_to_all(0) 48"},
      {{4}, {8, 8}, "S(0)", "_S(0, 2)", "all_to_all(0) 64"},
      {{4}, {8, 8}, "S(0)", "P(sum)", "all_gather(0) 192, fill"},
      {{4}, {8, 8}, "_S(0, 2)", "R", "all_gather(0) 192"},
      {{4}, {8, 8}, "_S(0, 2)", "S(1)", "all_to_all(0) 48"},
      {{4}, {8, 8}, "P(sum)", "R", "all_reduce(0) 384"},
      {{4}, {8, 8}, "P(sum)", "S(1)", "reduce_scatter(0) 192"},
      {{4}, {8, 8}, "P(avg)", "S(0)", "reduce_scatter(0) 192"},
      {{4}, {8, 8}, "P(sum)", "_S(0, 2)", "reduce_scatter(0) 192"},
      {{4}, {8, 8}, "P(sum)", "P(sum)", ""},
      {{4}, {8, 8}, "P(sum)", "P(max)", "all_reduce(0) 384, fill"},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "R", "all_reduce(0) 384"},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "S(0)", "reduce_scatter(0) 192"},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "P(sum)", ""},
      {{4}, {8, 8}, "P(sum)", "MaskP(sum, [10, 8], 0)", "all_reduce(0) 384, fill"},
      {{4}, {8, 8}, "_S(0, 1)", "S(0)", "slice"},  // the same parts

      // Uneven: rows 2, 2, 1, 0 of 5; columns 1, 1, 1, 0 of 3. The last rank receives everything, or a column of
      // nothing.
      {{4}, {5, 3}, "S(0)", "R", "all_gather(0) 60"},
      {{4}, {5, 3}, "S(0)", "S(1)", "all_to_all(0) 16"},
      {{4}, {1, 3}, "S(0)", "R", "all_gather(0) 12"},
      {{4}, {1, 3}, "S(0)", "S(1)", "all_to_all(0) 4"},
      {{4}, {1, 3}, "P(sum)", "S(0)", "reduce_scatter(0) 9"},
      {{4}, {0, 3}, "S(0)", "R", "slice"},
      {{4}, {0, 3}, "S(0)", "S(1)", "slice"},
      {{4}, {0, 3}, "P(sum)", "R", "slice"},
      {{4}, {}, "P(sum)", "R", "all_reduce(0) 6"},
      {{4}, {}, "R", "P(avg)", "fill"},

      // Two mesh dims: what can be one collective is one.
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "RR", "all_reduce(0,1) 384"},
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "S(0)S(1)", "reduce_scatter(0,1) 192"},
      {{2, 2}, {8, 8}, "S(0)S(0)", "RR", "all_gather(0,1) 192"},
      {{2, 2}, {8, 8}, "S(0)S(0)", "S(1)S(1)", "all_to_all(0,1) 48"},
      {{2, 2}, {8, 8}, "S(0)S(1)", "S(1)S(0)", "all_to_all(0,1) 64"},
      {{2, 2}, {8, 8}, "S(0)S(1)", "RS(1)", "all_gather(0) 64"},
      {{2, 2}, {8, 8}, "S(0)S(0)", "S(0)R", "all_gather(1) 64"},
      {{2, 2}, {8, 8}, "S(0)S(0)", "RS(0)", "all_to_all(0,1) 128"},  // the second rank has rows 2-3 and wants 4-7
      {{2, 2}, {8, 8}, "RS(0)", "S(0)S(0)", "all_to_all(1) 64"},
      {{2, 2}, {8, 8}, "RS(0)", "S(0)R", "all_to_all(1) 128"},
      {{2, 2}, {8, 8}, "RR", "S(0)S(0)", "slice"},
      {{2, 2}, {8, 8}, "S(0)R", "S(0)S(0)", "slice"},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "RS(0)", "all_reduce(0) 128"},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "S(1)S(0)", "reduce_scatter(0) 64"},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "P(sum)S(1)", "all_to_all(1) 64"},
      {{2, 2}, {8, 8}, "P(sum)P(avg)", "RR", "all_reduce(0) 256, all_reduce(1) 256"},
      {{2, 2}, {8, 8}, "RR", "P(sum)P(sum)", "fill"},
      {{2, 2}, {8, 8}, "S(0)R", "P(max)P(max)", "all_gather(0) 128, fill"},
      // Large: half the bytes are worth a second collective. Small: they are not.
      {{2, 2}, {4096, 4096}, "P(sum)P(sum)", "RS(0)", "reduce_scatter(1) 33554432, all_reduce(0) 33554432"},
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "RS(0)", "all_reduce(0,1) 384, slice"},

      // A mesh dim of size 1 is never worth a step.
      {{1}, {8, 8}, "P(sum)", "R", ""},
      {{1}, {8, 8}, "S(0)", "P(max)", ""},
      {{1, 4}, {8, 8}, "P(sum)S(0)", "RS(0)", ""},
      {{1, 4}, {8, 8}, "S(0)S(0)", "RR", "all_gather(1) 192"},
      {{4, 1}, {8, 8}, "S(0)S(0)", "RS(0)", "all_gather(0) 192"},
      {{4, 1}, {8, 8}, "P(sum)S(0)", "S(0)R", "reduce_scatter(0) 192"},

      // Three.
      {{2, 2, 2}, {8, 8}, "P(sum)S(0)P(sum)", "RS(0)R", "all_reduce(0,2) 192"},
      {{2, 2, 2}, {8, 8}, "S(0)S(1)S(0)", "S(0)RR", "all_gather(1,2) 96"},
  };
  for (const Row& row : rows) {
    CAPTURE(absl::StrJoin(row.mesh, "x"), absl::StrJoin(row.sizes, ","), row.from, row.to);
    const RedistributePlan plan = plan_redistribution(mesh_of(row.mesh), meta_of(row.sizes),
                                                      *parse_placements(row.from), *parse_placements(row.to));
    CHECK(steps_of(plan) == row.steps);
  }
}

TEST_CASE("a plan adds up its steps, and they are a chain") {
  const DeviceMesh mesh = mesh_of({2, 2});
  const Placements from = {Shard(0), Replicate()};
  const Placements to = {Partial(), Shard(1)};
  const RedistributePlan plan = plan_redistribution(mesh, meta_of({8, 8}), from, to);
  REQUIRE(plan.steps.size() >= 2);
  Placements at = from;
  int64_t bytes = 0;
  int64_t peak = 0;
  double seconds = 0;
  for (const RedistributeStep& step : plan.steps) {
    CHECK(step.before == at);
    at = step.after;
    bytes += step.bytes;
    seconds += step.seconds;
    peak = std::max(peak, step.peak_bytes);
  }
  CHECK(at == to);
  CHECK(plan.bytes == bytes);
  CHECK(plan.seconds == seconds);
  CHECK(plan.peak_bytes == peak);
  // Gathering 256 bytes: half before, all after, half received.
  CHECK(plan_redistribution(mesh, meta_of({8, 8}), from, {Replicate(), Replicate()}).peak_bytes == 128 + 256 + 128);
  CHECK(plan_redistribution(mesh, meta_of({8, 8}), from, from).peak_bytes == 128);
}

TEST_CASE("explain says what is done, over which dims, how much, and how long") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const auto explain = [&](const Placements& from, const Placements& to) {
    return plan_redistribution(mesh, meta_of({8, 8}), from, to).explain(mesh);
  };
  CHECK(explain({Shard(0)}, {Shard(1)}) == "S(0) -> S(1): all_to_all(tp) 48 B, 7.8 us");
  CHECK_THAT(explain({Shard(0)}, {Partial()}), StartsWith("S(0) -> P(sum): all_gather(tp) 192 B, fill, "));
  CHECK_THAT(explain({Replicate()}, {Shard(0)}), StartsWith("R -> S(0): slice, "));
  CHECK(explain({Shard(0)}, {Shard(0)}) == "S(0) -> S(0): nothing to do");
}

std::vector<Placements> layouts(int64_t mesh_ndim, const std::vector<Placement>& choices) {
  std::vector<Placements> all(1);
  for (int64_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : all) {
      for (const Placement& p : choices) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = longer;
  }
  return all;
}

// Visits every rank.
int64_t received_bytes(const DeviceMesh& mesh, const TensorMeta& meta, const RedistributeStep& step) {
  int64_t most = 0;
  for (int64_t rank : mesh.ranks()) {
    const auto before = local_layout(meta.sizes, mesh.shape(), step.before, mesh.coordinate(rank));
    const auto after = local_layout(meta.sizes, mesh.shape(), step.after, mesh.coordinate(rank));
    most = std::max(most, overlap_numel(after, after) - overlap_numel(before, after));
  }
  return most * static_cast<int64_t>(c10::elementSize(meta.dtype));
}

TEST_CASE("the bytes of a step are those of the rank that receives most") {
  const std::vector<Placement> choices = {Replicate(), Shard(0), Shard(1), StridedShard(0, 3)};
  size_t checked = 0;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{3}, {17}, {3, 5}, {7, 2}, {1, 6}, {2, 3, 2}}) {
    const DeviceMesh mesh = mesh_of(shape);
    const auto all = layouts(mesh.ndim(), choices);
    const size_t stride = all.size() > 16 ? 7 : 1;
    for (const Shape& sizes : {Shape{13, 9}, Shape{5, 24}, Shape{2, 1}}) {
      for (size_t i = 0; i < all.size() * all.size(); i += stride) {
        const TensorMeta meta = meta_of(sizes);
        const auto plan = plan_redistribution(mesh, meta, all[i / all.size()], all[i % all.size()]);
        for (const RedistributeStep& step : plan.steps) {
          INFO(mesh.to_string() << " " << absl::StrJoin(sizes, ",") << ": " << plan.explain(mesh));
          const int64_t expected = received_bytes(mesh, meta, step);
          if (step.bytes != expected) CHECK(step.bytes == expected);
          ++checked;
        }
      }
    }
  }
  CHECK(checked > 1000);
}

TEST_CASE("what needs no Partial never takes more than one collective, nor more bytes than gathering") {
  const std::vector<Placement> choices = {Replicate(), Shard(0), Shard(1), StridedShard(1, 2)};
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {2, 3}}) {
    const DeviceMesh mesh = mesh_of(shape);
    const auto all = layouts(mesh.ndim(), choices);
    for (const Placements& from : all) {
      for (const Placements& to : all) {
        const auto plan = plan_redistribution(mesh, meta_of({7, 10}), from, to);
        INFO(plan.explain(mesh));
        CHECK(plan.num_collectives() <= 1);
        CHECK(plan.bytes <= 7 * 10 * 4);
      }
    }
  }
}

TEST_CASE("a detour is never cheaper on one mesh dim") {
  const std::vector<Placement> choices = {Replicate(),        Shard(0),  Shard(1),
                                          StridedShard(0, 2), Partial(), Partial(ReduceOp::kMax)};
  for (const Shape& sizes : {Shape{8, 8}, Shape{7, 5}, Shape{1, 3}, Shape{2048, 2048}}) {
    const DeviceMesh mesh = mesh_of({4});
    const auto cost = [&](const Placement& a, const Placement& b) {
      return plan_redistribution(mesh, meta_of(sizes), {a}, {b}).seconds;
    };
    for (const Placement& a : choices) {
      CHECK(cost(a, a) == 0);
      for (const Placement& b : choices) {
        for (const Placement& c : choices) {
          CAPTURE(absl::StrJoin(sizes, ","), to_string(a), to_string(b), to_string(c));
          CHECK(cost(a, c) <= cost(a, b) + cost(b, c) + 1e-12);
        }
      }
    }
  }
}

TEST_CASE("thousands of ranks are planned without visiting them") {
  const DeviceMesh mesh = mesh_of({64, 64});
  const auto begin = std::chrono::steady_clock::now();
  const auto plan = plan_redistribution(mesh, meta_of({8192, 8192}), {Shard(0), Shard(0)}, {Shard(1), Shard(1)});
  const auto sum = plan_redistribution(mesh, meta_of({8192, 8192}), {Partial(), Partial()}, {Replicate(), Replicate()});
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  CHECK(steps_of(plan) == absl::StrCat("all_to_all(0,1) ", (2 * 8192 - 4) * 4));
  CHECK(steps_of(sum) == absl::StrCat("all_reduce(0,1) ", 2 * 4095 * (int64_t{8192} * 8192 * 4 / 4096)));
}

TEST_CASE("plans are remembered per world") {
  const DeviceMesh mesh(World::local(4), {4});
  SpecPtr spec = Spec::get(mesh, {Shard(0)}, {8, 8}, at::kFloat);
  const auto plan = cached_plan(spec, {Shard(1)});
  CHECK(plan == cached_plan(spec, {Shard(-1)}));
  CHECK(plan != cached_plan(spec, {Replicate()}));
  CHECK(plan != cached_plan(spec->with_placements({Partial()}), {Shard(1)}));
  CHECK(plan->explain(mesh) == plan_redistribution(mesh, spec->meta(), {Shard(0)}, {Shard(1)}).explain(mesh));
  CHECK_THROWS_AS(cached_plan(spec, {Shard(2)}), c10::Error);
  CHECK_THROWS_AS(cached_plan(spec, {Shard(0), Shard(1)}), c10::Error);
  // Bounded: after many others this one is forgotten, and can be planned again.
  std::weak_ptr<const RedistributePlan> forgotten = cached_plan(spec, {Replicate()});
  for (int64_t i = 0; i < 5000; ++i) cached_plan(Spec::get(mesh, {Shard(0)}, {i + 9}, at::kFloat), {Shard(0)});
  CHECK(forgotten.expired());
  CHECK(cached_plan(spec, {Replicate()})->num_collectives() == 1);
}

}  // namespace
}  // namespace dtensor
