// The time of decisions on meshes of many dims, and their quality.
#include "propagation/strategy_search.h"

#include <cmath>
#include <random>
#include <regex>

#include "placement/parse_placements.h"
#include "plan/redistribute_planner.h"
#include "propagation/propagate.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/plan_cases.h"
#include "tests/testing/time_limits.h"

namespace dtensor {
using namespace internal;

namespace {

struct SearchCase {
  std::string op;
  std::vector<Shape> shapes;
  std::vector<c10::IValue> args = {};
};

// Sizes of two, three and five dims, some with many divisors, some not.
const std::vector<SearchCase>& search_cases() {
  static const auto* const all = new std::vector<SearchCase>{
      {"aten::add.Tensor", {{16, 24, 8}, {16, 24, 8}}},
      {"aten::mul.Tensor", {{16, 24, 8}, {24, 8}}},
      {"aten::mm", {{64, 96}, {96, 128}}},
      {"aten::addmm", {{128}, {64, 96}, {96, 128}}},
      {"aten::bmm", {{12, 64, 32}, {12, 32, 48}}},
      {"aten::_softmax", {{16, 24, 8}}, {int64_t{1}, false}},
      {"aten::sum.dim_IntList", {{16, 24, 8}}, {std::vector<int64_t>{1}, false}},
      {"aten::view", {{16, 24, 9}}, {std::vector<int64_t>{384, 9}}},
      {"aten::view", {{384, 9}}, {std::vector<int64_t>{16, 24, 9}}},
      {"aten::view", {{15, 9, 7}}, {std::vector<int64_t>{945}}},
  };
  return *all;
}

class RandomCalls {
 public:
  explicit RandomCalls(const DeviceMesh& mesh) : mesh_(mesh) {}

  OpCall call(const SearchCase& c) {
    std::vector<SpecPtr> specs;
    for (const Shape& sizes : c.shapes) specs.push_back(spec(sizes));
    return OpCall::make(c.op, specs, c.args);
  }

  SpecPtr spec(const Shape& sizes) {
    return Spec::get(mesh_, placements(static_cast<int64_t>(sizes.size())), sizes, at::kFloat);
  }

  Placements placements(int64_t ndim) {
    Placements list;
    for (int64_t m = 0; m < mesh_.ndim(); ++m) {
      const auto kind = random_() % 8;
      const auto d = static_cast<int64_t>(random_() % ndim);
      list.push_back(kind < 2 ? Replicate() : kind == 2 ? Partial() : kind == 3 ? StridedShard(d, 2) : Shard(d));
    }
    return normalize_placements(list, ndim).value();
  }

 private:
  const DeviceMesh& mesh_;
  std::mt19937 random_{7};
};

// Ratios to the best.
struct Quality {
  double logs = 0, worst = 1;
  int count = 0;
  std::string text;

  void add(double seconds, double best, const std::string& what) {
    const double ratio = best > 0 ? seconds / best : seconds > 0 ? 1e9 : 1;
    logs += std::log(ratio);
    ++count;
    if (ratio > worst) {
      worst = ratio;
      text = what;
    }
  }
  double mean() const { return std::exp(logs / count); }
  std::string to_string() const {
    return std::to_string(count) + " cases, mean " + std::to_string(mean()) + ", worst " + std::to_string(worst) +
           ": " + text;
  }
};

constexpr int64_t kAll = int64_t{1} << 40;

}  // namespace

TEST_CASE("up to three mesh dims, every combination is priced") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 2}, {2, 3, 2}}) {
    const DeviceMesh mesh = dtensor::mesh_of(shape);
    RandomCalls random(mesh);
    for (int round = 0; round < 3; ++round) {
      for (const SearchCase& c : search_cases()) {
        const OpCall call = random.call(c);
        INFO(call.to_string());
        SearchEffort usual, all;
        all.every = kAll;
        CHECK(propagate(call, usual)->explain() == propagate(call, all)->explain());
        CHECK(usual.seconds == all.seconds);
      }
    }
  }
}

// Under a limit the decision is within it, or the error names a sufficient limit.
TEST_CASE("a limit of memory chooses among strategies") {
  int kept = 0, refused = 0, others = 0;
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {2, 2}, {2, 2, 2, 2}}) {
    const DeviceMesh mesh = dtensor::mesh_of(shape);
    RandomCalls random(mesh);
    // A limited search of four dims prices 100 times as many combinations: the short form has a quarter of the cases.
    const bool few = shape.size() == 4 && !testing::long_tests();
    const int rounds = few ? 1 : 8;
    int number = 0;
    for (int round = 0; round < rounds; ++round) {
      for (const SearchCase& c : search_cases()) {
        if (few && number++ % 4 != 0) continue;
        OpCall call = random.call(c);
        INFO(call.to_string());
        const auto needed = [](const Decision& decision) {
          int64_t most = 0;
          for (const auto& plan : decision.input_plans) most = std::max(most, plan ? plan->peak_bytes : 0);
          return most;
        };
        const auto usual = propagate(call);
        if (needed(*usual) == 0) continue;
        call.context.scope.limits.max_bytes = needed(*usual);
        // On more dims a search that a limit rules is another one, and may end elsewhere.
        if (shape.size() <= 3) CHECK(propagate(call)->explain() == usual->explain());
        CHECK(needed(*propagate(call)) <= call.context.scope.limits.max_bytes);
        call.context.scope.limits.max_bytes = needed(*usual) - 1;
        try {
          const auto decision = propagate(call);
          CHECK(needed(*decision) <= call.context.scope.limits.max_bytes);
          ++kept;
          if (decision->computed != usual->computed) ++others;
        } catch (const c10::ValueError& e) {
          const std::string text = e.what_without_backtrace();
          CHECK(text.find("max_bytes is " + std::to_string(call.context.scope.limits.max_bytes)) != std::string::npos);
          std::smatch named;
          REQUIRE(std::regex_search(text, named, std::regex("at least ([0-9]+) bytes")));
          call.context.scope.limits.max_bytes = std::stoll(named[1]);
          CHECK(needed(*propagate(call)) <= call.context.scope.limits.max_bytes);
          ++refused;
        }
      }
    }
  }
  CHECK(kept > 0);
  CHECK(others > 0);
  CHECK(refused > 0);
}

// If not all are priced, the result takes hardly longer: on average 1%, at worst a quarter.
TEST_CASE("an incomplete search is near the best") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 2, 2}, {2, 3, 2}, {2, 2, 2, 2}}) {
    const DeviceMesh mesh = dtensor::mesh_of(shape);
    RandomCalls random(mesh);
    Quality quality;
    for (int round = 0; round < (shape.size() == 4 ? 2 : 6); ++round) {
      for (const SearchCase& c : search_cases()) {
        const OpCall call = random.call(c);
        SearchEffort some, all;
        some.every = 1;
        all.every = kAll;
        const auto plan = propagate(call, some);
        const auto best = propagate(call, all);
        CHECK(some.seconds >= all.seconds);
        quality.add(some.seconds, all.seconds, plan->explain() + "\n  best: " + best->explain());
      }
    }
    INFO(mesh << ": " << quality.to_string());
    CHECK(quality.mean() <= 1.01);
    CHECK(quality.worst <= 1.25);
  }
}

TEST_CASE("on six to eight mesh dims, decisions take a bounded number of steps") {
  for (size_t ndim = 6; ndim <= 8; ++ndim) {
    const DeviceMesh mesh = dtensor::mesh_of(std::vector<int64_t>(ndim, 2));
    RandomCalls random(mesh);
    for (const SearchCase& c : search_cases()) {
      for (int round = 0; round < 2; ++round) {
        const OpCall call = random.call(c);
        SearchEffort effort;
        const double start = testing::thread_cpu_seconds();
        const auto plan = propagate(call, effort);
        INFO(plan->explain() << ": " << effort.priced << " priced, " << effort.planned << " planned");
        CHECK(effort.priced <= 2048 + 1500);  // the round that goes over is finished
        CHECK(effort.planned <= 400);
        CHECK(testing::thread_cpu_seconds() - start < 2);  // alone a few ms
      }
    }
  }
}

TEST_CASE("lists of a hundred tensors are decided in a bounded number of steps") {
  for (size_t ndim : {1, 2, 3, 5, 8}) {
    const DeviceMesh mesh = dtensor::mesh_of(std::vector<int64_t>(ndim, 2));
    RandomCalls random(mesh);
    for (const char* op : {"aten::cat", "aten::stack"}) {
      std::vector<SpecPtr> few;
      for (int i = 0; i < 3; ++i) few.push_back(random.spec({16, 8, 4}));
      std::vector<SpecPtr> specs;
      for (int i = 0; i < 100; ++i) specs.push_back(few[i % few.size()]);
      const OpCall call = OpCall::make(op, specs, {int64_t{0}});
      SearchEffort effort;
      const double start = testing::thread_cpu_seconds();
      propagate(call, effort);
      INFO(op << " on " << mesh << ": " << effort.priced << " priced, " << effort.planned << " planned");
      CHECK(effort.planned <= 1200);  // of three layouts, not of a hundred tensors
      CHECK(testing::thread_cpu_seconds() - start < 4);
    }
  }
}

TEST_CASE("redistributions over more than three mesh dims are near the best") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 2, 2, 2}, {2, 3, 2, 2}}) {
    const DeviceMesh mesh = dtensor::mesh_of(shape);
    RandomCalls random(mesh);
    for (const Shape& sizes : {Shape{16, 12, 8}, Shape{256, 192, 128}}) {
      const TensorMeta meta = meta_of(sizes);
      for (const bool two_levels : {false, true}) {
        Quality quality;
        CostModel cost;
        cost.ranks_per_node = two_levels ? 4 : 1 << 20;
        PlanOptions some{std::make_shared<const CostModel>(cost), {}};
        PlanOptions all = some;
        all.complete = true;
        for (int round = 0; round < 25; ++round) {
          const Placements from = random.placements(3), to = random.placements(3);
          const auto plan = plan_redistribution(mesh, meta, from, to, some);
          const auto best = plan_redistribution(mesh, meta, from, to, all);
          CHECK(plan.seconds >= best.seconds * (1 - 1e-9));
          quality.add(plan.seconds, best.seconds, plan.to_string() + "\n  best: " + best.to_string());
        }
        INFO(mesh << ": " << quality.to_string());
        CHECK(quality.mean() <= 1.02);
        CHECK(quality.worst <= 1.5);
      }
    }
  }
}

TEST_CASE("redistributions over eight mesh dims are planned in milliseconds") {
  const DeviceMesh mesh = dtensor::mesh_of(std::vector<int64_t>(8, 2));
  RandomCalls random(mesh);
  for (const Shape& sizes : {Shape{256, 192, 128}, Shape{17, 12, 9}}) {
    for (int round = 0; round < 10; ++round) {
      const Placements from = random.placements(3), to = random.placements(3);
      const double start = testing::thread_cpu_seconds();
      const auto plan = plan_redistribution(mesh, meta_of(sizes), from, to);
      INFO(plan.to_string());
      CHECK(testing::thread_cpu_seconds() - start < 0.5);  // alone a few ms
      CHECK(plan.steps.empty() == (from == to));
    }
  }
}

}  // namespace dtensor
