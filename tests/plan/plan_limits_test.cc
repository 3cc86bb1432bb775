// Limits: other routes, rounds, and impossible limits.

#include <c10/util/Exception.h>

#include <numeric>
#include <regex>

#include "absl/strings/str_join.h"
#include "placement/parse_placements.h"
#include "tests/plan/random_plans.h"
#include "tests/testing/plan_cases.h"
#include "tests/testing/plan_matcher.h"

namespace dtensor {
using namespace internal;

namespace {

using Catch::Contains;

PlanOptions within(int64_t peak_bytes, bool uses_staging_buffers) {
  CostModel cost;
  cost.uses_staging_buffers = uses_staging_buffers;
  return {std::make_shared<const CostModel>(cost), {peak_bytes}};
}

// The bytes in an error about limits; -1 if there are none.
int64_t smallest_that_works(const std::string& error) {
  std::smatch match;
  return std::regex_search(error, match, std::regex("at least ([0-9]+) bytes")) ? std::stoll(match[1]) : -1;
}

TEST_CASE("a limit chooses another route") {
  const DeviceMesh mesh = mesh_of({2, 2}, {"a", "b"});
  const auto plan = [&](int64_t limit) {
    return plan_redistribution(mesh, meta_of({8, 8}), layout("P(sum)P(sum)"), layout("RS(0)"),
                               within(limit, /*uses_staging_buffers=*/false));
  };
  EXPECT_PLAN(plan(512), "ar(a,b), slice");
  CHECK(plan(512).peak_bytes == 512);
  EXPECT_PLAN(plan(511), "rs(b), ar(a)");
  CHECK(plan(511).peak_bytes == 256 + 128);
  CHECK(plan(511).seconds > plan(512).seconds);
  CHECK(plan(511).limits.max_bytes == 511);
  EXPECT_PLAN(plan(384), "rs(b), ar(a)");
  CHECK(plan(383).peak_bytes == 256 + 64);
  CHECK_THROWS_AS(plan(319), c10::Error);
  CHECK_THAT(plan(511).explain(), Contains("all_reduce(a,b), slice: ") && Contains("needs 512 B, more than the limit"));
}

TEST_CASE("a limit splits an exchange into rounds if messages are packed") {
  const DeviceMesh mesh = mesh_of({4}, {"tp"});
  const auto plan = [&](int64_t limit, bool uses_staging_buffers = true) {
    return plan_redistribution(mesh, meta_of({64, 64}), {Shard(0)}, {Shard(1)}, within(limit, uses_staging_buffers));
  };
  // 4096 bytes before, as many after, 3072 received and 3072 sent.
  const int64_t parts = 2 * 64 * 64;
  CHECK(plan(100000).peak_bytes == parts + 2 * 3072);
  EXPECT_PLAN(plan(parts + 2 * 3072), "a2a(tp)");
  int64_t chunks = 1;
  double seconds = plan(100000).seconds;
  for (int64_t limit : {parts + 2 * 3072 - 1, parts + 3000, parts + 1000, parts + 400}) {
    const RedistributePlan p = plan(limit);
    CAPTURE(limit, p.explain());
    REQUIRE(p.steps.size() == 1);
    CHECK(p.steps[0].kind == RedistributeStep::Kind::kAllToAll);
    CHECK(p.steps[0].chunks > chunks);
    CHECK(p.peak_bytes <= limit);
    CHECK(p.peak_bytes > parts);
    CHECK(p.bytes == 3072);
    CHECK(p.num_collectives() == 1);
    CHECK(p.seconds > seconds);  // every round has its latency
    CHECK_THAT(p.short_form(), Catch::StartsWith("a2a(tp)"));
    CHECK_THAT(p.explain(), Contains("rounds"));
    chunks = p.steps[0].chunks;
    seconds = p.seconds;
  }
  CHECK_THROWS_AS(plan(parts), c10::Error);
  // Without buffers there is nothing to split.
  CHECK(plan(parts, false).steps[0].chunks == 1);
  CHECK(plan(parts, false).peak_bytes == parts);
}

TEST_CASE("the error of an impossible limit names a sufficient one") {
  const DeviceMesh mesh = mesh_of({4}, {"tp"});
  const auto plan = [&](int64_t limit) {
    return plan_redistribution(mesh, meta_of({8, 8}), {Shard(0)}, {Replicate()},
                               within(limit, /*uses_staging_buffers=*/false));
  };
  CHECK_THROWS_WITH(plan(100), Contains("S(0) -> R") && Contains("f32[8, 8]") && Contains("mesh(tp=4)") &&
                                   Contains("max_bytes is 100") && Contains("every route needs at least 320 bytes"));
  CHECK(plan(320).peak_bytes == 320);
  CHECK_THROWS_AS(plan(319), c10::Error);
  CHECK_THROWS_AS(plan(0), c10::Error);
  CHECK_THROWS_AS(plan(-1), c10::Error);
}

struct FreeAndTight {
  RedistributePlan free, tight;  // without a limit, and with the smallest
};

// A plan stays within its limit, or its error names the smallest sufficient one. Within a property.
template <typename Plan>
FreeAndTight checked_limits(const Plan& plan) {
  const auto smallest = [&](int64_t limit) -> int64_t {  // 0: it does
    try {
      const RedistributePlan p = plan(limit);
      RC_ASSERT(p.peak_bytes <= limit);
      return 0;
    } catch (const c10::Error& e) {
      return smallest_that_works(e.what_without_backtrace());
    }
  };
  const RedistributePlan free = plan(std::numeric_limits<int64_t>::max());
  RC_LOG() << free.to_string() << ", peak " << free.peak_bytes << std::endl;
  RC_PRE(!free.steps.empty());
  RC_ASSERT(plan(free.peak_bytes).to_string() == free.to_string());
  const int64_t least = smallest(0);
  RC_LOG() << "least " << least << std::endl;
  RC_ASSERT(least > 0);
  RC_ASSERT(least <= free.peak_bytes);
  RC_ASSERT(smallest(least) == 0);
  const RedistributePlan tight = plan(least);
  RC_LOG() << tight.to_string() << std::endl;
  RC_ASSERT(tight.peak_bytes == least);
  RC_ASSERT(smallest(least - 1) == least);
  return {free, tight};
}

TEST_CASE("random plans stay within limits, and errors name the smallest") {
  const auto property = [] {
    const RandomTensor t;
    const Placements from = t.layout("from"), to = t.layout("to");
    const bool uses_staging_buffers = testing::draw(0, 1) == 0;
    RC_LOG() << "uses_staging_buffers " << uses_staging_buffers << std::endl;
    const auto plan = [&](int64_t limit) {
      return plan_redistribution(t.mesh, t.meta, from, to, within(limit, uses_staging_buffers));
    };
    RC_PRE(t.meta.numel() > 0);
    const auto [free, tight] = checked_limits(plan);
    // The time never shrinks with the limit.
    const int64_t middle = tight.peak_bytes + (free.peak_bytes - tight.peak_bytes) / 2;
    RC_ASSERT(plan(middle).seconds >= free.seconds - 1e-12);
    RC_ASSERT(tight.seconds >= plan(middle).seconds - 1e-12);
  };
  REQUIRE(testing::holds("limits", 600, property));
}

// Some of the ranks of `world`, in any order, as a mesh of one or two dims.
Layout draw_layout(const World& world, int64_t ndim, const char* name) {
  std::vector<int64_t> ranks(world.size()), shape;
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int64_t i = world.size(); i-- > 1;) std::swap(ranks[i], ranks[testing::draw(0, i)]);
  Placements placements;
  int64_t size = 1;
  for (int64_t m = testing::draw(1, 2); m > 0; --m) {
    shape.push_back(testing::draw(1, std::min<int64_t>(4, world.size() / size)));
    size *= shape.back();
    placements.push_back(draw_placement(ndim));
    if (!normalize_placements(placements, ndim).ok())
      placements.back() = Replicate();  // reductions that cannot be mixed
  }
  ranks.resize(size);
  const Layout layout(DeviceMesh(world, shape, {}, ranks), placements);
  RC_LOG() << name << " " << layout.to_string() << " of ranks " << absl::StrJoin(ranks, ",") << std::endl;
  return layout;
}

TEST_CASE("random transfers stay within limits, and errors name the smallest") {
  int64_t above_steps = 0;  // the steps on a mesh may need more without a limit than with one
  const auto property = [&] {
    const World world = World::abstract(8);
    Shape sizes;
    for (int64_t d = testing::draw(0, 3); d > 0; --d) sizes.push_back(testing::draw(1, 13));
    const TensorMeta meta = meta_of(sizes);
    RC_LOG() << "[" << absl::StrJoin(sizes, ", ") << "]" << std::endl;
    const Layout from = draw_layout(world, meta.sizes.size(), "from"), to = draw_layout(world, meta.sizes.size(), "to");
    const bool uses_staging_buffers = testing::draw(0, 1) == 0;
    RC_LOG() << "uses_staging_buffers " << uses_staging_buffers << std::endl;
    const auto plan = [&](int64_t limit) { return plan_transfer(meta, from, to, within(limit, uses_staging_buffers)); };
    const auto [free, tight] = checked_limits(plan);
    for (const RedistributeStep& step : free.steps) {
      if (step.kind != RedistributeStep::Kind::kTransfer && step.peak_bytes == free.peak_bytes &&
          tight.peak_bytes < free.peak_bytes) {
        ++above_steps;
        break;
      }
    }
  };
  REQUIRE(testing::holds("transfer limits", 600, property));
  CHECK(above_steps > 20);
}

TEST_CASE("a limit splits the steps before and after a transfer, too") {
  const World world = World::abstract(8);
  const TensorMeta meta = meta_of({64, 64});  // 16384 bytes
  const auto mesh = [&](std::vector<int64_t> ranks, const char* name) {
    return DeviceMesh(world, {static_cast<int64_t>(ranks.size())}, {name}, ranks);
  };
  const DeviceMesh a = mesh({0, 1, 2, 3}, "a"), b = mesh({4, 5, 6, 7}, "b"), c = mesh({0, 1, 4, 5}, "c");
  const auto plan = [&](const Layout& from, const Layout& to, int64_t limit) {
    return plan_transfer(meta, from, to, within(limit, /*uses_staging_buffers=*/true));
  };
  const auto least = [&](const Layout& from, const Layout& to) -> int64_t {
    try {
      plan(from, to, 0);
    } catch (const c10::Error& e) {
      return smallest_that_works(e.what_without_backtrace());
    }
    return 0;
  };
  // Reduced in rounds.
  const RedistributePlan reduced = plan({a, {Partial()}}, {b, {Shard(0)}}, least({a, {Partial()}}, {b, {Shard(0)}}));
  INFO(reduced.explain());
  REQUIRE(reduced.steps.size() == 2);
  CHECK(reduced.steps[0].kind == RedistributeStep::Kind::kReduceScatter);
  CHECK(reduced.steps[0].chunks > 1);
  // A rank in both meshes should drop three quarters before it gets other rows of the tensor.
  const Layout whole(a, {Replicate()}), parts(c, {StridedShard(0, 8)});
  const RedistributePlan cut = plan(whole, parts, least(whole, parts));
  INFO(cut.explain());
  CHECK(cut.peak_bytes <= 16384 + 4096 + 512);
}

}  // namespace
}  // namespace dtensor
