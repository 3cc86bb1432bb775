// Plans compared with the optimum (PlanPeers::bound) and with PyTorch (PlanPeers::greedy).

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/peers.h"
#include "tests/testing/plan_cases.h"
#include "tests/testing/plan_matcher.h"

namespace dtensor {
namespace {

using testing::PeerPlan;
using testing::PlanPeers;
using Kind = RedistributeStep::Kind;

bool has_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
}

const std::vector<Placement>& plain() {
  static const std::vector<Placement> choices = {Replicate(), Shard(0), Shard(1), Shard(2), Partial()};
  return choices;
}

// Each of 1, 5, 6, 7, 8, 13 on each of three dims, in `shifts` combinations.
std::vector<Shape> tensor_sizes(int shifts) {
  constexpr int64_t kSizes[] = {1, 5, 6, 7, 8, 13};
  std::vector<Shape> all;
  for (int shift = 1; shift <= shifts; ++shift) {
    for (int i = 0; i < 6; ++i) all.push_back({kSizes[i], kSizes[(i + shift) % 6], kSizes[(i + 4 * shift + 1) % 6]});
  }
  return all;
}

class GeometricMean {
 public:
  template <typename Text>
  void add(double ratio, Text&& text) {
    logs_ += std::log(ratio);
    ++count_;
    if (ratio > 1) ++above_;
    if (worst_.size() == 6 && ratio <= worst_.rbegin()->first) return;
    worst_.emplace(ratio, text());
    if (worst_.size() > 6) worst_.erase(std::prev(worst_.end()));
  }
  double value() const { return count_ == 0 ? 1 : std::exp(logs_ / static_cast<double>(count_)); }
  std::string to_string() const {
    std::string text = absl::StrCat("geometric mean ", value(), " over ", count_, " pairs, ", above_, " above 1");
    for (const auto& [ratio, what] : worst_) absl::StrAppend(&text, "\n    ", ratio, " ", what);
    return text;
  }

 private:
  double logs_ = 0;
  int64_t count_ = 0, above_ = 0;
  std::multimap<double, std::string, std::greater<>> worst_;
};

// Plans every pair of layouts on one mesh, in the short form every third of those of three mesh dims, and collects
// their quality.
struct Survey {
  GeometricMean over_bound, under_greedy;
  int64_t number = 0, pairs = 0, free = 0, below_bound = 0;
  std::map<std::string, std::vector<std::string>> wrong;  // by fault
  // Routes with parts larger than source and target: the bound's, and others.
  std::vector<std::string> large, needlessly_large;

  // `bytes_decide`: only bytes have a price.
  void visit(const DeviceMesh& mesh, const TensorMeta& meta, const PlanOptions& options, bool bytes_decide);
  std::string to_string() const;
};

void Survey::visit(const DeviceMesh& mesh, const TensorMeta& meta, const PlanOptions& options, bool bytes_decide) {
  PlanPeers peers(mesh, meta);
  const auto all = layouts(mesh.ndim(), plain());
  const int64_t every = testing::long_tests() || mesh.ndim() < 3 ? 1 : 3;
  for (const Placements& from : all) {
    for (const Placements& to : all) {
      if (number++ % every != 0) continue;
      ++pairs;
      const RedistributePlan plan = plan_redistribution(mesh, meta, from, to, options);
      const PeerPlan bound = peers.bound(from, to);
      const PeerPlan greedy = peers.greedy(from, to);
      const auto text = [&] {
        return absl::StrCat(mesh.to_string(), " ", absl::StrJoin(meta.sizes, "x"), " ", plan.to_string(), "; bound ",
                            bound.to_string(), "; greedy ", greedy.bytes, " B");
      };
      const auto check = [&](bool ok, const char* what) {
        if (!ok) wrong[what].push_back(text());
      };
      check(plan.bytes <= greedy.bytes, "more bytes than greedy");
      check((plan.bytes == 0) == (bound.bytes == 0), "free or not");
      if (!has_partial(from)) {
        check(bytes_decide ? plan.bytes == bound.bytes : plan.bytes <= bound.bytes * 1.01,
              "not the bytes that ranks lack");
        check(plan.num_collectives() <= 1, "more than one collective");
      }
      if (plan.bytes > 0 && bound.bytes > 0) {
        over_bound.add(static_cast<double>(plan.bytes) / static_cast<double>(bound.bytes), text);
        under_greedy.add(static_cast<double>(greedy.bytes) / static_cast<double>(plan.bytes), text);
        below_bound += plan.bytes < bound.bytes;
      } else {
        ++free;
      }
      const int64_t ends = std::max(peers.largest_part(from), peers.largest_part(to));
      int64_t largest = ends;
      for (const RedistributeStep& step : plan.steps) largest = std::max(largest, peers.largest_part(step.after));
      if (static_cast<double>(largest) > 1.05 * static_cast<double>(ends)) {
        (largest <= bound.largest_part ? large : needlessly_large).push_back(text());
      }
    }
  }
}

std::string Survey::to_string() const {
  std::string all = absl::StrCat(pairs, " pairs, ", free, " of them free\nbytes / bound: ", over_bound.to_string(),
                                 "\n", below_bound, " below 1\ngreedy's bytes / bytes: ", under_greedy.to_string());
  const auto list = [&](const std::string& what, const std::vector<std::string>& texts) {
    absl::StrAppend(&all, "\n", texts.size(), " ", what);
    for (size_t i = 0; i < texts.size(); i += texts.size() / 4 + 1) absl::StrAppend(&all, "\n    ", texts[i]);
  };
  list("have larger parts than source and target, as the bound has", large);
  list("have larger parts than the bound has", needlessly_large);
  for (const auto& [what, texts] : wrong) list(absl::StrCat("WRONG: ", what), texts);
  return all;
}

// DTENSOR_SURVEY=1 in the environment prints the numbers.
void check(const DeviceMesh& mesh, const Survey& survey) {
  if (std::getenv("DTENSOR_SURVEY") != nullptr) std::cout << mesh << ": " << survey.to_string() << std::endl;
  INFO(mesh << ": " << survey.to_string());
  CHECK(survey.wrong.empty());
  CHECK(static_cast<double>(survey.needlessly_large.size()) <= 0.0005 * static_cast<double>(survey.pairs));
  CHECK(survey.over_bound.value() <= 1.10);
  CHECK(survey.under_greedy.value() >= 1.22);
}

TEST_CASE("if only bytes count, plans move hardly more than the optimum", "[optimal]") {
  const PlanOptions options = bytes_decide();
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2}, {4}, {8}, {2, 2}, {2, 4}, {4, 4}, {2, 2, 2}}) {
    const DeviceMesh mesh = mesh_of(shape);
    Survey survey;
    for (const Shape& sizes : tensor_sizes(shape.size() == 3 ? 1 : 2)) {
      // Three tensor sizes are enough for the 15625 pairs of three mesh dims.
      if (shape.size() == 3 && sizes[0] != 13 && sizes[0] != 8 && sizes[0] != 5) continue;
      survey.visit(mesh, meta_of(sizes), options, /*bytes_decide=*/true);
    }
    check(mesh, survey);
  }
}

TEST_CASE("large tensors with the built-in costs of one node", "[optimal]") {
  const PlanOptions options = one_node();
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2}, {4}, {8}, {2, 2}, {2, 4}, {4, 4}}) {
    const DeviceMesh mesh = mesh_of(shape);
    Survey survey;
    for (const Shape& sizes : {Shape{4096, 1024, 8}, Shape{4099, 1021, 9}})
      survey.visit(mesh, meta_of(sizes), options, /*bytes_decide=*/false);
    check(mesh, survey);
  }
}

TEST_CASE("on one mesh dim bytes match the closed form", "[optimal]") {
  for (int64_t ranks : {2, 3, 4, 8}) {
    const DeviceMesh mesh = mesh_of({ranks});
    const TensorMeta even = meta_of({ranks * ranks, 2 * ranks, 3});
    for (const Placement& from : {Replicate(), Shard(0), Shard(1), Partial()}) {
      for (const Placement& to : {Replicate(), Shard(0), Shard(1), Partial()}) {
        CAPTURE(ranks, to_string(from), to_string(to));
        const int64_t bytes = testing::closed_form_1d(from, to, even.bytes(), ranks);
        CHECK(plan_redistribution(mesh, even, {from}, {to}).bytes == bytes);
        CHECK(plan_redistribution(mesh, even, {from}, {to}, bytes_decide()).bytes == bytes);
        CHECK(testing::bound_bytes(mesh, even, {from}, {to}) == bytes);
      }
    }
    for (const Shape& sizes : {Shape{5, 7, 3}, Shape{1, 13, 2}, Shape{9, 1, 1}, Shape{ranks + 1, ranks - 1, 2}}) {
      for (const Placements& from : layouts(1, plain())) {
        for (const Placements& to : layouts(1, plain())) {
          const RedistributePlan plan = plan_redistribution(mesh, meta_of(sizes), from, to);
          INFO(absl::StrJoin(sizes, "x") << ": " << plan.to_string());
          CHECK(plan.bytes == testing::bound_bytes(mesh, meta_of(sizes), from, to));
        }
      }
    }
  }
}

TEST_CASE("sharded to sharded is one exchange, never through Replicate", "[optimal]") {
  const std::vector<Placement> choices = {Shard(0), Shard(1), Shard(2), StridedShard(0, 2), StridedShard(1, 3)};
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {2, 2}, {2, 3}, {2, 2, 2}}) {
    const DeviceMesh mesh = mesh_of(shape);
    // On several mesh dims a small tensor may be gathered along a short one: latency decides.
    const PlanOptions options = shape.size() == 1 ? PlanOptions() : bytes_decide();
    for (const Shape& sizes : {Shape{8, 8, 8}, Shape{13, 5, 6}}) {
      for (const Placements& from : layouts(mesh.ndim(), choices)) {
        for (const Placements& to : layouts(mesh.ndim(), choices)) {
          const RedistributePlan plan = plan_redistribution(mesh, meta_of(sizes), from, to, options);
          bool ok = from == to ? plan.steps.empty() : plan.steps.size() <= 1;
          for (const RedistributeStep& step : plan.steps) ok &= step.kind != Kind::kAllGather;
          if (ok) continue;
          INFO(absl::StrJoin(sizes, "x") << ": " << plan.explain());
          FAIL_CHECK("not one exchange");
        }
      }
    }
  }
}

TEST_CASE("Partial to Replicate on several mesh dims is one all-reduce", "[optimal]") {
  const DeviceMesh mesh = mesh_of({2, 3, 2}, {"a", "b", "c"});
  for (const Shape& sizes : {Shape{8, 8}, Shape{7, 5}, Shape{4096, 1021}}) {
    const auto plan = [&](const char* from, const char* to) {
      return plan_redistribution(mesh, meta_of(sizes), layout(from), layout(to), one_node());
    };
    EXPECT_PLAN(plan("P(sum)P(sum)P(sum)", "RRR"), "ar(a,b,c)");
    EXPECT_PLAN(plan("P(sum)P(sum)S(0)", "RRS(0)"), "ar(a,b)");
    EXPECT_PLAN(plan("P(max)S(1)P(max)", "RS(1)R"), "ar(a,c)");
    EXPECT_PLAN(plan("S(0)P(avg)P(avg)", "S(0)RR"), "ar(b,c)");
  }
}

TEST_CASE("a change of the order of cuts is one exchange of parts", "[optimal]") {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{2, 2}, {2, 4}, {4, 2}, {3, 2}}) {
    const DeviceMesh mesh = mesh_of(shape, {"a", "b"});
    const int64_t n = shape[0] * shape[1];
    const Placements nested = {Shard(0), Shard(0)};
    const Placements other = {StridedShard(0, shape[1]), Shard(0)};  // the second mesh dim cuts first
    for (const auto& [from, to] : {std::make_pair(nested, other), std::make_pair(other, nested)}) {
      EXPECT_PLAN(plan_redistribution(mesh, meta_of({4 * n, 3}), from, to), "permute(a,b)");
      const RedistributePlan uneven = plan_redistribution(mesh, meta_of({4 * n + 3, 3}), from, to);
      CAPTURE(uneven.explain());
      REQUIRE(uneven.steps.size() == 1);
      CHECK((uneven.steps[0].kind == Kind::kPermute || uneven.steps[0].kind == Kind::kAllToAll));
    }
  }
}

}  // namespace
}  // namespace dtensor
