#include "plan/redistribute_planner.h"

#include <c10/util/Exception.h>

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/testing/plan_cases.h"
#include "tests/testing/plan_matcher.h"
#include "tests/testing/time_limits.h"

namespace dtensor {
namespace {

using Catch::Contains;
using Catch::StartsWith;
using Kind = RedistributeStep::Kind;

struct Row {
  std::vector<int64_t> mesh;  // dims a, b, c
  Shape sizes;
  const char* from;
  const char* to;
  const char* plan;
  int64_t bytes;
};

TEST_CASE("steps and bytes of plans") {
  const Row rows[] = {
      // Every pair on one mesh dim. A tensor of 256 bytes over 4 ranks.
      {{4}, {8, 8}, "R", "R", "", 0},
      {{4}, {8, 8}, "R", "S(0)", "slice", 0},
      {{4}, {8, 8}, "R", "_S(0, 2)", "slice", 0},
      {{4}, {8, 8}, "R", "P(sum)", "fill", 0},
      {{4}, {8, 8}, "R", "MaskP(sum, [10, 8], 0)", "fill", 0},
      {{4}, {8, 8}, "S(0)", "R", "ag(a)", 192},
      {{4}, {8, 8}, "S(0)", "S(0)", "", 0},
      {{4}, {8, 8}, "S(0)", "S(1)", "a2a(a)", 48},
      {{4}, {8, 8}, "S(0)", "_S(0, 2)", "a2a(a)", 64},
      {{4}, {8, 8}, "S(0)", "P(sum)", "ag(a), fill", 192},
      {{4}, {8, 8}, "_S(0, 2)", "R", "ag(a)", 192},
      {{4}, {8, 8}, "_S(0, 2)", "S(1)", "a2a(a)", 48},
      {{4}, {8, 8}, "P(sum)", "R", "ar(a)", 384},
      {{4}, {8, 8}, "P(sum)", "S(1)", "rs(a)", 192},
      {{4}, {8, 8}, "P(avg)", "S(0)", "rs(a)", 192},
      {{4}, {8, 8}, "P(sum)", "_S(0, 2)", "rs(a)", 192},
      {{4}, {8, 8}, "P(sum)", "P(sum)", "", 0},
      {{4}, {8, 8}, "P(sum)", "P(max)", "ar(a), fill", 384},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "R", "ar(a)", 384},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "S(0)", "rs(a)", 192},
      {{4}, {8, 8}, "MaskP(sum, [10, 8], 0)", "P(sum)", "", 0},
      {{4}, {8, 8}, "P(sum)", "MaskP(sum, [10, 8], 0)", "ar(a), fill", 384},
      {{4}, {8, 8}, "_S(0, 1)", "S(0)", "slice", 0},  // the same parts

      // Uneven: rows 2, 2, 1, 0 of 5; columns 1, 1, 1, 0 of 3. The last rank receives everything, or a column of
      // nothing.
      {{4}, {5, 3}, "S(0)", "R", "ag(a)", 60},
      {{4}, {5, 3}, "S(0)", "S(1)", "a2a(a)", 16},
      {{4}, {1, 3}, "S(0)", "R", "ag(a)", 12},
      {{4}, {1, 3}, "S(0)", "S(1)", "a2a(a)", 4},
      {{4}, {1, 3}, "P(sum)", "S(0)", "rs(a)", 9},
      {{4}, {0, 3}, "S(0)", "R", "slice", 0},
      {{4}, {0, 3}, "S(0)", "S(1)", "slice", 0},
      {{4}, {0, 3}, "P(sum)", "R", "slice", 0},
      {{4}, {}, "P(sum)", "R", "ar(a)", 6},
      {{4}, {}, "R", "P(avg)", "fill", 0},

      // Two mesh dims: combined into one collective where possible.
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "RR", "ar(a,b)", 384},
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "S(0)S(1)", "rs(a,b)", 192},
      {{2, 2}, {8, 8}, "S(0)S(0)", "RR", "ag(a,b)", 192},
      {{2, 2}, {8, 8}, "S(0)S(0)", "S(1)S(1)", "a2a(a,b)", 48},
      {{2, 2}, {8, 8}, "S(0)S(1)", "S(1)S(0)", "permute(a,b)", 64},
      {{2, 2}, {8, 8}, "S(0)S(1)", "RS(1)", "ag(a)", 64},
      {{2, 2}, {8, 8}, "S(0)S(0)", "S(0)R", "ag(b)", 64},
      {{2, 2}, {8, 8}, "S(0)S(0)", "RS(0)", "a2a(a,b)", 128},  // the second rank has rows 2-3 and needs 4-7
      {{2, 2}, {8, 8}, "RS(0)", "S(0)S(0)", "a2a(b)", 64},
      {{2, 2}, {8, 8}, "RS(0)", "S(0)R", "permute(b)", 128},
      {{2, 2}, {8, 8}, "RR", "S(0)S(0)", "slice", 0},
      {{2, 2}, {8, 8}, "S(0)R", "S(0)S(0)", "slice", 0},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "RS(0)", "ar(a)", 128},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "S(1)S(0)", "rs(a)", 64},
      {{2, 2}, {8, 8}, "P(sum)S(0)", "P(sum)S(1)", "a2a(b)", 64},
      {{2, 2}, {8, 8}, "P(sum)P(avg)", "RR", "ar(a), ar(b)", 512},
      {{2, 2}, {8, 8}, "RR", "P(sum)P(sum)", "fill", 0},
      {{2, 2}, {8, 8}, "S(0)R", "P(max)P(max)", "ag(a), fill", 128},
      // Large: half the bytes are worth a second collective. Small: not.
      {{2, 2}, {4096, 4096}, "P(sum)P(sum)", "RS(0)", "rs(b), ar(a)", 67108864},
      {{2, 2}, {8, 8}, "P(sum)P(sum)", "RS(0)", "ar(a,b), slice", 384},

      // A mesh dim of size 1 is never worth a step.
      {{1}, {8, 8}, "P(sum)", "R", "", 0},
      {{1}, {8, 8}, "S(0)", "P(max)", "", 0},
      {{1, 4}, {8, 8}, "P(sum)S(0)", "RS(0)", "", 0},
      {{1, 4}, {8, 8}, "S(0)S(0)", "RR", "ag(b)", 192},
      {{4, 1}, {8, 8}, "S(0)S(0)", "RS(0)", "ag(a)", 192},
      {{4, 1}, {8, 8}, "P(sum)S(0)", "S(0)R", "rs(a)", 192},

      // Three.
      {{2, 2, 2}, {8, 8}, "P(sum)S(0)P(sum)", "RS(0)R", "ar(a,c)", 192},
      {{2, 2, 2}, {8, 8}, "S(0)S(1)S(0)", "S(0)RR", "ag(b,c)", 96},
  };
  for (const Row& row : rows) {
    std::vector<std::string> names = {"a", "b", "c"};
    names.resize(row.mesh.size());
    const RedistributePlan plan =
        plan_redistribution(mesh_of(row.mesh, names), meta_of(row.sizes), layout(row.from), layout(row.to));
    CAPTURE(absl::StrJoin(row.mesh, "x"), absl::StrJoin(row.sizes, ","), row.from, row.to);
    EXPECT_PLAN(plan, row.plan);
    CHECK(plan.bytes == row.bytes);
  }
}

TEST_CASE("texts of a plan: one line, a line per step and route, JSON") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"tp"});
  const auto plan = [&](const char* from, const char* to) {
    return plan_redistribution(mesh, meta_of({8, 8}), layout(from), layout(to));
  };
  CHECK(plan("S(0)", "S(1)").to_string() == "S(0) -> S(1): all_to_all(tp) 48 B, 7.8 us");
  CHECK(plan("S(0)", "S(1)").short_form() == "a2a(tp)");
  CHECK_THAT(plan("S(0)", "P(sum)").to_string(), StartsWith("S(0) -> P(sum): all_gather(tp) 192 B, fill, "));
  CHECK(plan("S(0)", "P(sum)").short_form() == "ag(tp), fill");
  CHECK_THAT(plan("R", "S(0)").to_string(), StartsWith("R -> S(0): slice, "));
  CHECK(plan("S(0)", "S(0)").to_string() == "S(0) -> S(0): nothing to do");
  CHECK(plan("S(0)", "S(0)").short_form() == "");

  const std::string text = plan("S(0)", "S(1)").explain();
  CHECK_THAT(text, StartsWith("f32[8, 8]: S(0) -> S(1) on mesh(tp=4)\n"));
  CHECK_THAT(text, Contains("1. all_to_all(tp): S(0) -> S(1), groups of 4, 48 B to a rank, peak 224 B, 7.8 us\n"));
  CHECK_THAT(text, Contains("not taken:\n"));
  CHECK_THAT(text, Contains("all_gather(tp), slice: 192 B, 7.8 us: 4.0 times the bytes"));
  CHECK_THAT(plan("S(0)", "S(0)").explain(), Contains("nothing to do"));
}

TEST_CASE("routes begin with the plan, without repeats or better ones") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {2, 2}, {2, 3}}) {
    const DeviceMesh mesh = mesh_of(shape);
    const auto all = layouts(mesh.ndim(), {Replicate(), Shard(0), Shard(1), Partial()});
    for (const Placements& from : all) {
      for (const Placements& to : all) {
        const RedistributePlan plan = plan_redistribution(mesh, meta_of({7, 10}), from, to);
        const std::vector<Route> list = routes(plan);
        INFO(plan.explain());
        if (plan.steps.empty()) {
          CHECK(list.empty());
          continue;
        }
        REQUIRE(!list.empty());
        CHECK(list[0].seconds == plan.seconds);
        CHECK(list[0].bytes == plan.bytes);
        CHECK(list[0].peak_bytes == plan.peak_bytes);
        REQUIRE(list[0].steps.size() == plan.steps.size());
        for (size_t i = 0; i < plan.steps.size(); ++i) {
          CHECK(list[0].steps[i].kind == plan.steps[i].kind);
          CHECK(list[0].steps[i].after == plan.steps[i].after);
        }
        for (size_t r = 0; r < list.size(); ++r) {
          if (r > 0) CHECK(list[r].seconds >= list[r - 1].seconds);
          REQUIRE(!list[r].steps.empty());
          CHECK(list[r].steps[0].before == from);
          CHECK(list[r].steps.back().after == to);
          int64_t bytes = 0;
          for (size_t i = 0; i < list[r].steps.size(); ++i) {
            bytes += list[r].steps[i].bytes;
            if (i > 0) CHECK(list[r].steps[i].before == list[r].steps[i - 1].after);
          }
          CHECK(list[r].bytes == bytes);
        }
      }
    }
  }
  // The detour through Replicate is always listed.
  const RedistributePlan plan =
      plan_redistribution(mesh_of({2, 2}), meta_of({8, 8}), layout("S(0)S(0)"), layout("S(1)S(1)"));
  const auto list = routes(plan);
  CHECK(std::any_of(list.begin(), list.end(), [](const Route& route) {
    return std::any_of(route.steps.begin(), route.steps.end(),
                       [](const auto& step) { return step.after == layout("RR"); });
  }));
}

TEST_CASE("a plan as JSON") {
  const DeviceMesh mesh = mesh_of({2, 2}, {"dp", "tp"});
  const RedistributePlan plan = plan_redistribution(mesh, meta_of({4096, 1021}), layout("P(sum)S(0)"), layout("S(1)R"));
  INFO(plan.to_json());
  const auto json = nlohmann::json::parse(plan.to_json());
  CHECK(json["tensor"]["dtype"] == "f32");
  CHECK(json["tensor"]["sizes"] == std::vector<int64_t>{4096, 1021});
  CHECK(json["from"]["placements"] == "P(sum)S(0)");
  CHECK(json["to"]["placements"] == "S(1)R");
  CHECK(json["from"]["mesh"]["names"] == std::vector<std::string>{"dp", "tp"});
  CHECK(json["from"]["mesh"]["shape"] == std::vector<int64_t>{2, 2});
  CHECK(json["bytes"] == plan.bytes);
  CHECK(json["peak_bytes"] == plan.peak_bytes);
  CHECK(json["seconds"].get<double>() == plan.seconds);
  REQUIRE(json["steps"].size() == plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const RedistributeStep& step = plan.steps[i];
    const auto& entry = json["steps"][i];
    CHECK(entry["before"] == to_string(step.before));
    CHECK(entry["after"] == to_string(step.after));
    CHECK(entry["bytes"] == step.bytes);
    CHECK(entry["peak_bytes"] == step.peak_bytes);
    CHECK(entry["seconds"].get<double>() == step.seconds);
    CHECK(entry["chunks"] == step.chunks);
    std::vector<std::string> dims;
    for (int64_t dim : step.dims) dims.push_back(mesh.names()[dim]);
    CHECK(entry["mesh_dims"] == dims);
    CHECK(entry.count("op") == (step.kind == Kind::kReduceScatter || step.kind == Kind::kAllReduce ? 1 : 0));
  }
  CHECK(json["steps"][0]["step"] == "reduce_scatter");
  CHECK(json["steps"][0]["op"] == "sum");
  CHECK(json["not_taken"].size() >= 1);
  for (const auto& route : json["not_taken"]) {
    CHECK(route["seconds"].get<double>() >= plan.seconds);
    CHECK(route["why_not"].get<std::string>() != "");
    CHECK(route["steps"].size() >= 1);
  }
}

TEST_CASE("plans without Partial take one collective at most, and no more bytes than gathering") {
  const std::vector<Placement> choices = {Replicate(), Shard(0), Shard(1), StridedShard(1, 2)};
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {2, 3}}) {
    const DeviceMesh mesh = mesh_of(shape);
    const auto all = layouts(mesh.ndim(), choices);
    for (const Placements& from : all) {
      for (const Placements& to : all) {
        const auto plan = plan_redistribution(mesh, meta_of({7, 10}), from, to);
        INFO(plan.explain());
        CHECK(plan.num_collectives() <= 1);
        CHECK(plan.bytes <= 7 * 10 * 4);
      }
    }
  }
}

TEST_CASE("thousands of ranks are planned without visiting them") {
  const DeviceMesh mesh = mesh_of({64, 64}, {"a", "b"});
  const double begin = testing::thread_cpu_seconds();
  const auto plan = plan_redistribution(mesh, meta_of({8192, 8192}), layout("S(0)S(0)"), layout("S(1)S(1)"));
  const auto sum =
      plan_redistribution(mesh, meta_of({8192, 8192}), layout("P(sum)P(sum)"), layout("RR"), bytes_decide());
  CHECK(testing::thread_cpu_seconds() - begin < 1);
  EXPECT_PLAN(plan, "a2a(a,b)");
  CHECK(plan.bytes == (2 * 8192 - 4) * 4);
  EXPECT_PLAN(sum, "ar(a,b)");
  CHECK(sum.bytes == 2 * 4095 * (int64_t{8192} * 8192 * 4 / 4096));
}

TEST_CASE("a plan is a function of its arguments, in any world") {
  const auto text = [](const World& world, const PlanOptions& options) {
    const DeviceMesh mesh(world, {2, 2}, {"dp", "tp"});
    std::string all;
    for (const Placements& from : layouts(2, {Replicate(), Shard(0), Shard(1), Partial(), StridedShard(0, 2)})) {
      for (const Placements& to : layouts(2, {Replicate(), Shard(0), Shard(1), Partial()})) {
        const RedistributePlan plan = plan_redistribution(mesh, meta_of({7, 10}), from, to, options);
        absl::StrAppend(&all, plan.to_string(), " ", plan.peak_bytes, " ", plan.seconds, "\n");
      }
    }
    return all;
  };
  const PlanOptions options{std::make_shared<const CostModel>(), {}};
  const std::string plans = text(World::abstract(4), options);
  CHECK(plans == text(World::local(4), options));
  CHECK(plans == text(World::fake(4, 2), options));
  CHECK(plans == text(World::abstract(4), {}));
  CHECK(plans == text(World::abstract(4), options));
}

TEST_CASE("plans are cached per world") {
  const World world = World::local(4);
  const DeviceMesh mesh(world, {4});
  SpecPtr spec = Spec::get(mesh, {Shard(0)}, {8, 8}, at::kFloat);
  const auto plan = cached_plan(spec, {Shard(1)});
  CHECK(plan == cached_plan(spec, {Shard(1)}));
  CHECK(plan == cached_plan(spec, {Shard(-1)}));
  CHECK(plan == cached_plan(spec, mesh, {Shard(1)}));
  CHECK(plan != cached_plan(spec, {Replicate()}));
  CHECK(plan != cached_plan(spec->with_placements({Partial()}), {Shard(1)}));
  CHECK(plan->explain() == plan_redistribution(mesh, spec->meta(), {Shard(0)}, {Shard(1)}).explain());
  CHECK_THROWS_AS(cached_plan(spec, {Shard(2)}), c10::Error);
  CHECK_THROWS_AS(cached_plan(spec, {Shard(0), Shard(1)}), c10::Error);
  // Bounded: after many others this one is evicted, and can be planned again.
  std::weak_ptr<const RedistributePlan> forgotten = cached_plan(spec, {Replicate()});
  for (int64_t i = 0; i < 5000; ++i) cached_plan(Spec::get(mesh, {Shard(0)}, {i + 9}, at::kFloat), {Shard(0)});
  CHECK(forgotten.expired());
  CHECK(cached_plan(spec, {Replicate()})->num_collectives() == 1);
}

TEST_CASE("plans to another mesh are cached, too") {
  const World world = World::local(4);
  const DeviceMesh mesh(world, {4}), square(world, {2, 2}), reversed(world, {4}, {}, {3, 2, 1, 0});
  SpecPtr spec = Spec::get(mesh, {Shard(0)}, {8, 8}, at::kFloat);
  const auto plan = cached_plan(spec, reversed, {Shard(0)});
  CHECK(plan == cached_plan(spec, reversed, {Shard(-2)}));
  CHECK(plan != cached_plan(spec, mesh, {Shard(0)}));
  CHECK(plan != cached_plan(spec, reversed, {Shard(1)}));
  CHECK(plan->to == Layout(reversed, {Shard(0)}));
  CHECK(plan->bytes == 2 * 8 * 4);
  CHECK(plan->to_string() ==
        plan_transfer(spec->meta(), Layout(mesh, {Shard(0)}), Layout(reversed, {Shard(0)})).to_string());
  CHECK(cached_plan(spec, square, {Shard(0), Shard(0)})->steps.empty());
  CHECK_THROWS_AS(cached_plan(spec, square, {Shard(0)}), c10::Error);
}

TEST_CASE("evicted plans are made again with the world's cost model") {
  const World world = World::abstract(4);
  SpecPtr spec = Spec::get(DeviceMesh(world, {4}), {Shard(0)}, {8, 8}, at::kFloat);
  const auto before = cached_plan(spec, {Shard(1)});
  CHECK(before->cost == cost_model(world));
  world.release_caches();
  CHECK(before != cached_plan(spec, {Shard(1)}));
  CHECK(before->to_string() == cached_plan(spec, {Shard(1)})->to_string());
  CostModel slow;
  slow.within_node.fill({/*latency=*/1e-3, /*hop_latency=*/1e-3, /*bandwidth=*/1e6});
  set_cost_model(world, slow);
  CHECK(*cost_model(world) == slow);
  CHECK(cached_plan(spec, {Shard(1)})->seconds >= 3e-3);
  CHECK(plan_redistribution(spec->mesh(), spec->meta(), {Shard(0)}, {Shard(1)}).seconds >= 3e-3);
  CHECK(before->seconds < 1e-4);
}

TEST_CASE("a plan outlives its world") {
  // Caches of plans must not keep worlds alive.
  std::weak_ptr<const RedistributePlan> plan;
  {
    const World world = World::local(2);
    plan = cached_plan(Spec::get(DeviceMesh(world, {2}), {Shard(0)}, {8, 8}, at::kFloat), {Shard(1)});
    CHECK(!plan.expired());
  }
  CHECK(plan.expired());
}

TEST_CASE("redistribute planner: invalid arguments") {
  const DeviceMesh mesh = mesh_of({2, 2});
  CHECK_THROWS_WITH(plan_redistribution(mesh, meta_of({8}), {Shard(0)}, {Shard(0)}),
                    Contains("one placement per mesh dim"));
  CHECK_THROWS_AS(plan_redistribution(mesh, meta_of({8}), layout("RR"), layout("R")), c10::Error);
}

}  // namespace
}  // namespace dtensor
