// Plans of whole modules under a memory budget, and how they are explained.
#include "sharded/embedding_sharding_planner.h"

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "plan/cost_model.h"
#include "tests/sharded/lookup_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::sharded {
namespace {

using Catch::Contains;
using testing::error_text;

struct Recommender : torch::nn::Module {
  Recommender() {
    add("country", 20, 16);
    add("user", 30000, 16);
    add("history", 20000, 16);
    for (int i = 0; i < 4; ++i) add("item" + std::to_string(i), 2500, 16);
    register_module("dense", torch::nn::Linear(13, 16));
  }
  void add(const std::string& name, int64_t rows, int64_t columns) {
    register_module(name, torch::nn::EmbeddingBag(rows, columns));
  }
};

PlannerOptions options() {
  PlannerOptions o;
  o.bytes_per_rank = 1024 * 1024;
  o.batch_per_rank = 512;
  o.ids = {{"history", 200}};
  o.cost = std::make_shared<const CostModel>();  // the same on every machine
  return o;
}

std::map<std::string, ShardingKind> kinds(const PlanReport& report) {
  std::map<std::string, ShardingKind> result;
  for (const auto& p : report.parameters) result[p.facts.name] = p.choice.kind;
  return result;
}

TEST_CASE("a plan with every kind of table is accepted by shard_module", "[planner]") {
  Recommender model;
  EmbeddingShardingPlanner planner(test_world(), options());
  const ShardingPlan plan = planner.build_plan(model);
  const auto kind = kinds(planner.report());
  CHECK(kind.at("country.weight") == ShardingKind::kReplicated);
  CHECK(kind.at("dense.weight") == ShardingKind::kReplicated);
  CHECK(kind.at("dense.bias") == ShardingKind::kReplicated);
  CHECK(kind.at("user.weight") == ShardingKind::kColumnWise);
  CHECK(kind.at("history.weight") == ShardingKind::kRowWise);
  for (int i = 0; i < 4; ++i) CHECK(kind.at("item" + std::to_string(i) + ".weight") == ShardingKind::kTableWise);
  shard_module(model, plan, test_world());
  int64_t sharded = 0, bytes = 0;
  for (const auto& p : model.named_parameters()) {
    const int64_t rank = own_ranks()[0];
    if (is_sharded(p.value())) {
      ++sharded;
      for (const Shard& shard : ShardedTensor(p.value()).local_shards(rank)) bytes += shard.tensor.numel() * 4;
    } else {
      bytes += p.value().numel() * 4;
    }
  }
  CHECK(sharded == static_cast<int64_t>(plan.plan.size()));
  CHECK(bytes == planner.report().step.memory[own_ranks()[0]]);
  CHECK(planner.report().step.largest() <= options().bytes_per_rank);
}

TEST_CASE("a report lists choices, bytes, communication and reasons", "[planner]") {
  Recommender model;
  EmbeddingShardingPlanner planner(test_world(), options());
  planner.build_plan(model);
  const std::string text = planner.report().to_string();
  CHECK_THAT(text, Contains("user.weight") && Contains("[30000, 16]") && Contains("column-wise"));
  CHECK_THAT(text, Contains("over budget"));  // user, replicated
  CHECK_THAT(text, Contains("table-wise on rank") && Contains(" us"));
  CHECK_THAT(text, Contains("of a budget of 1024.0 KiB"));
}

TEST_CASE("the error of an impossible budget names a sufficient one", "[planner]") {
  Recommender model;
  PlannerOptions little = options();
  little.bytes_per_rank = 500 * 1000;
  const std::string text = error_text([&] { EmbeddingShardingPlanner(test_world(), little).build_plan(model); });
  CHECK_THAT(text, Contains("no plan was found that keeps bytes_per_rank = 500000 over 4 ranks; one that needs 96") &&
                       Contains("with 8 ranks 500000 would do"));
  // The named budget suffices.
  const size_t at = text.find("one that needs ") + 15;
  little.bytes_per_rank = std::stoll(text.substr(at));
  EmbeddingShardingPlanner(test_world(), little).build_plan(model);
  little.bytes_per_rank = 100;
  CHECK_THAT(error_text([&] { EmbeddingShardingPlanner(test_world(), little).build_plan(model); }),
             Contains("more ranks alone do not help, as 896 bytes of it are replicated"));
}

TEST_CASE("invalid options are rejected", "[planner]") {
  const auto error_of = [](const std::function<void(PlannerOptions&)>& change) {
    PlannerOptions o = options();
    change(o);
    return error_text([&] {
      Recommender model;
      EmbeddingShardingPlanner(test_world(), o).build_plan(model);
    });
  };
  CHECK_THAT(error_of([](auto& o) { o.bytes_per_rank = 0; }), Contains("bytes_per_rank is 0"));
  CHECK_THAT(error_of([](auto& o) { o.batch_per_rank = -1; }), Contains("batch_per_rank is -1"));
  CHECK_THAT(error_of([](auto& o) { o.memory_factor = 0.5; }), Contains("memory_factor is 0.5"));
  CHECK_THAT(error_of([](auto& o) { o.ids["dense"] = 3; }), Contains("`ids` names 'dense', which is no table"));
  CHECK_THAT(error_of([](auto& o) { o.ids["user"] = 0; }), Contains("ids of 'user' is 0"));
}

}  // namespace
}  // namespace dtensor::sharded
