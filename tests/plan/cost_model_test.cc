#include "plan/cost_model.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/plan_cases.h"
#include "tests/testing/plan_matcher.h"

namespace dtensor {
namespace {

using Catch::Contains;

// All numbers distinct.
CostModel unusual() {
  CostModel cost;
  double next = 1;
  for (CostModel::Level* level : {&cost.within_node, &cost.between_nodes}) {
    for (LinkCost& link : *level) {
      link.latency = 1e-7 * next++;
      link.hop_latency = 1e-8 / next++;
      link.bandwidth = 1e9 / 3 * next++;
    }
  }
  cost.ranks_per_node = 3;
  cost.copy_bandwidth = 1.0 / 7;
  cost.flops_per_second = 1e12 / 7;
  cost.flops_by_dtype = {{at::kDouble, 1e12 / 3}, {at::kFloat8_e4m3fn, 1e15 / 3}, {at::kComplexFloat, 5}};
  cost.operator_latency = 1e-6 / 3;
  cost.operators = {{"view", {{0, 1e-6 / 7}}}, {"aten::mm float32", {{1e3, 1e-5 / 3}, {1e6 / 3, 1e-5}}}};
  cost.uses_staging_buffers = false;
  return cost;
}

TEST_CASE("a cost model survives JSON", "[cost_model]") {
  for (const CostModel& cost : {CostModel(), unusual()}) {
    INFO(cost.to_json());
    CHECK(CostModel::from_json(cost.to_json()) == cost);
  }
  CHECK(unusual() != CostModel());
  const auto json = nlohmann::json::parse(unusual().to_json());
  CHECK(json["ranks_per_node"] == 3);
  CHECK(json["uses_staging_buffers"] == false);
  CHECK(json["within_node"].size() == kNumCollectives);
  CHECK(json["between_nodes"]["all_to_all"].contains("bandwidth"));
}

TEST_CASE("missing fields of a cost model have their built-in values", "[cost_model]") {
  CHECK(CostModel::from_json("{}") == CostModel());
  CostModel expected;
  expected.ranks_per_node = 4;
  expected.between_nodes[static_cast<size_t>(Collective::kAllGather)].bandwidth = 5e9;
  CHECK(CostModel::from_json(R"({"ranks_per_node": 4, "between_nodes": {"all_gather": {"bandwidth": 5e9}}})") ==
        expected);
}

TEST_CASE("errors in a cost model name file and field", "[cost_model]") {
  const auto complaint = [](const std::string& text) -> std::string {
    try {
      CostModel::from_json(text, "cluster.json");
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "accepted";
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"({"speed": 1})", "`speed`"},
      {R"({"within_node": {"all_gahter": {}}})", "`all_gahter`"},
      {R"({"within_node": {"all_gather": {"latancy": 1}}})", "`latancy`"},
      {R"({"between_nodes": {"permute": {"bandwidth": -1}}})", "between_nodes.permute: `bandwidth` is -1"},
      {R"({"between_nodes": {"permute": {"latency": 0}}})", "between_nodes.permute: `latency` is 0"},
      {R"({"within_node": {"permute": {"hop_latency": "fast"}}})", "within_node.permute: `hop_latency` is \"fast\""},
      {R"({"within_node": {"permute": {"bandwidth": 1e400}}})", "cluster.json"},
      {R"({"copy_bandwidth": -2.5})", "`copy_bandwidth` is -2.5"},
      {R"({"flops_per_second": 0})", "`flops_per_second` is 0"},
      {R"({"flops_by_dtype": 1e14})", "cluster.json.flops_by_dtype: is number"},
      {R"({"flops_by_dtype": {"float33": 1e14}})",
       "flops_by_dtype: unknown field `float33`; known are float64, float32"},
      {R"({"flops_by_dtype": {"float32": -1}})", "cluster.json.flops_by_dtype: `float32` is -1"},
      {R"({"operator_latency": -1e-6})", "`operator_latency` is -1e-06; give a number of at least 0"},
      {R"({"operator_latency": "1"})", "`operator_latency` is \"1\""},
      {R"({"operators": [1]})", "operators: is array, not an object"},
      {R"({"operators": {"view": 3}})", "operators.view: is 3; give pairs of amount and seconds"},
      {R"({"operators": {"view": [[1, 2, 3]]}})", "operators.view: has [1,2,3]; give pairs"},
      {R"({"operators": {"view": [["0", 1]]}})", "operators.view: has [\"0\",1]; give pairs"},
      {R"({"operators": {"view": []}})", "`operators[view]` has no times"},
      {R"({"operators": {"view": [[0, 0]]}})", "`operators[view]` has 0 seconds; give a number greater than 0"},
      {R"({"operators": {"aten::add": [[8, 1], [8, 2]]}})", "`operators[aten::add]` has the amount 8; give amounts"},
      {R"({"ranks_per_node": 0})", "`ranks_per_node` is 0"},
      {R"({"ranks_per_node": 1.5})", "`ranks_per_node` is 1.5"},
      {R"({"uses_staging_buffers": 1})", "`uses_staging_buffers` is 1"},
      {R"({"within_node": 3})", "within_node"},
      {R"({"within_node": {"all_reduce": []}})", "within_node.all_reduce"},
      {"[]", "array"},
      {"{", "no JSON"},
      {"", "no JSON"},
  };
  for (const auto& [text, names] : cases) {
    CAPTURE(text);
    CHECK_THAT(complaint(text), Contains(names) && Contains("cluster.json"));
  }
}

TEST_CASE("a world refuses a cost model whose times are no numbers", "[cost_model]") {
  const World world = World::abstract(2);
  const auto refuses = [&](const std::function<void(CostModel&)>& change, const std::string& text) {
    CostModel cost;
    change(cost);
    CHECK_THROWS_WITH(set_cost_model(world, cost), Contains(text));
    CHECK(*cost_model(world) == CostModel());
  };
  constexpr auto kPermute = static_cast<size_t>(Collective::kPermute);
  refuses([](CostModel& c) { c.ranks_per_node = 0; }, "`ranks_per_node` is 0; give a number greater than 0");
  refuses([](CostModel& c) { c.copy_bandwidth = -2; }, "`copy_bandwidth` is -2");
  refuses([](CostModel& c) { c.flops_per_second = std::nan(""); }, "`flops_per_second` is nan");
  refuses([](CostModel& c) { c.within_node[kPermute].bandwidth = 0; }, "`within_node.permute.bandwidth` is 0");
  refuses([](CostModel& c) { c.between_nodes[kPermute].latency = -1; }, "`between_nodes.permute.latency` is -1");
  refuses([](CostModel& c) { c.flops_by_dtype[at::kBFloat16] = 0; }, "`flops_by_dtype[BFloat16]` is 0");
  refuses([](CostModel& c) { c.operator_latency = -1; }, "`operator_latency` is -1; give a number of at least 0");
  refuses([](CostModel& c) { c.operators["view"] = {{-1, 1}}; }, "`operators[view]` has the amount -1; give amounts");
  CostModel no_latency;
  no_latency.between_nodes[kPermute].latency = no_latency.between_nodes[kPermute].hop_latency = 0;
  set_cost_model(world, no_latency);
  CHECK(*cost_model(world) == no_latency);
}

TEST_CASE("a cost model is loaded from its file", "[cost_model]") {
  const char* directory = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(directory != nullptr ? directory : "/tmp") + "/dtensor_cost_model_test.json";
  std::ofstream(path) << unusual().to_json();
  CHECK(CostModel::load(path) == unusual());
  std::ofstream(path) << R"({"speed": 1})";
  CHECK_THROWS_WITH(CostModel::load(path), Contains(path) && Contains("`speed`"));
  std::remove(path.c_str());
  CHECK_THROWS_WITH(CostModel::load(path), Contains(path));
}

TEST_CASE("cost of collectives", "[cost_model]") {
  CostModel cost;
  cost.within_node.fill({/*latency=*/10, /*hop_latency=*/1, /*bandwidth=*/100});
  cost.between_nodes.fill({/*latency=*/1000, /*hop_latency=*/100, /*bandwidth=*/10});
  CHECK(cost.collective(Collective::kAllGather, GroupExtent::within_node(1), 500) == 0);
  CHECK(cost.collective(Collective::kAllGather, GroupExtent::within_node(2), 500) == 10 + 1 + 5);
  CHECK(cost.collective(Collective::kAllGather, GroupExtent::within_node(5), 500) == 10 + 3 + 5);
  CHECK(cost.collective(Collective::kAllReduce, GroupExtent::within_node(8), 500) == 10 + 6 + 5);
  CHECK(cost.collective(Collective::kPermute, GroupExtent::within_node(8), 500) == 10 + 1 + 5);
  CHECK(cost.collective(Collective::kAllToAll, GroupExtent::of_links(8, true), 500) == 1000 + 300 + 50);
  cost.within_node[static_cast<size_t>(Collective::kAllToAll)].bandwidth = 1;
  CHECK(cost.collective(Collective::kAllToAll, GroupExtent::within_node(2), 500) == 10 + 1 + 500);
  CHECK(cost.collective(Collective::kAllGather, GroupExtent::within_node(2), 500) == 10 + 1 + 5);
  cost.copy_bandwidth = 4;
  CHECK(cost.copy(10) == 2.5);
  cost.flops_per_second = 8;
  cost.flops_by_dtype = {{at::kBFloat16, 40}, {at::kDouble, 2}};
  CHECK(cost.work(20, at::kFloat, 10) == 2.5 + 2.5);
  CHECK(cost.work(20, at::kBFloat16, 10) == 0.5 + 2.5);
  CHECK(cost.products(20, at::kDouble) == 10);
  cost.operator_latency = 100;
  CHECK(cost.work(20, at::kFloat, 10) == 2.5 + 2.5);  // all ways of an operator start it once
  for (int c = 0; c < kNumCollectives; ++c) {
    for (bool crosses : {false, true}) {
      for (int64_t bytes : {0, 1, 1000000})
        CHECK(cost.least(bytes) <=
              cost.collective(static_cast<Collective>(c), GroupExtent::of_links(2, crosses), bytes));
    }
  }
}

TEST_CASE("a gather over nodes goes over the links of all its ranks on a node", "[cost_model]") {
  CostModel cost;
  cost.within_node.fill({/*latency=*/0, /*hop_latency=*/0, /*bandwidth=*/100});
  cost.between_nodes.fill({/*latency=*/0, /*hop_latency=*/0, /*bandwidth=*/20});
  for (const Collective c : {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
    CHECK(cost.collective(c, {4, 1}, 1000) == 50);
    CHECK(cost.collective(c, {8, 2}, 1000) == 25);
    CHECK(cost.collective(c, {16, 4}, 1000) == 12.5);
    CHECK(cost.collective(c, {32, 8}, 1000) == 10);  // the links within the node carry all that arrives
    CHECK(cost.collective(c, {8, 8}, 1000) == 10);
  }
  for (const Collective c : {Collective::kAllToAll, Collective::kPermute})
    CHECK(cost.collective(c, {8, 4}, 700) == 35);  // over each rank's own link
  for (const int64_t on_node : {1, 2, 4, 8}) {
    for (int c = 0; c < kNumCollectives; ++c)
      CHECK(cost.least(1000) <= cost.collective(static_cast<Collective>(c), {8, on_node}, 1000));
  }
}

TEST_CASE("the extent of groups is counted in ranks of one node", "[cost_model]") {
  const World world = World::abstract(16);
  const DeviceMesh mesh(world, {2, 4, 2}, {"pp", "dp", "tp"});
  const auto extent = [&](const std::vector<int64_t>& dims, int64_t ranks_per_node) {
    const GroupExtent e = group_extent(mesh.group(dims), ranks_per_node);
    CHECK(group_extent(mesh.group(dims), ranks_per_node).on_node == e.on_node);  // remembered
    return std::pair(e.size, e.on_node);
  };
  using Pair = std::pair<int64_t, int64_t>;
  CHECK(extent({2}, 8) == Pair(2, 2));  // tp: neighbours
  CHECK(extent({2}, 1) == Pair(2, 1));
  CHECK(extent({1}, 8) == Pair(4, 4));  // dp: every second rank of eight
  CHECK(extent({1}, 4) == Pair(4, 2));
  CHECK(extent({0}, 8) == Pair(2, 1));  // pp: eight ranks apart
  CHECK(extent({0, 1}, 8) == Pair(8, 4));
  CHECK(extent({0, 1, 2}, 8) == Pair(16, 8));
  CHECK(extent({0, 1, 2}, 16) == Pair(16, 16));
  CHECK(extent({0, 1, 2}, 6) == Pair(16, 4));  // nodes of 6, 6 and 4
  const DeviceMesh turned(world, {4}, {"dp"}, {0, 8, 1, 9});
  CHECK(group_extent(turned.get_group("dp"), 8).on_node == 2);
}

TEST_CASE("one exchange over several mesh dims is not slower than one for each", "[cost_model]") {
  const CostModel cost;
  for (Collective c :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll}) {
    for (int64_t a = 2; a <= 17; ++a) {
      for (int64_t b = 2; b <= 17; ++b) {
        CAPTURE(a, b);
        CHECK(cost.collective(c, GroupExtent::within_node(a * b), 0) <=
              cost.collective(c, GroupExtent::within_node(a), 0) + cost.collective(c, GroupExtent::within_node(b), 0));
      }
    }
  }
}

TEST_CASE("mesh dims within a node are cheaper than those between nodes", "[cost_model]") {
  const DeviceMesh mesh = mesh_of({2, 4}, {"dp", "tp"});  // 8 ranks
  CostModel cost;
  cost.within_node.fill({/*latency=*/1e-6, /*hop_latency=*/1e-6, /*bandwidth=*/100e9});
  cost.between_nodes.fill({/*latency=*/10e-6, /*hop_latency=*/1e-6, /*bandwidth=*/10e9});
  cost.copy_bandwidth = 1e30;
  const auto seconds = [&](int64_t ranks_per_node, const char* from, const char* to, const TensorMeta& meta) {
    cost.ranks_per_node = ranks_per_node;
    return plan_redistribution(mesh, meta, layout(from), layout(to), {std::make_shared<const CostModel>(cost), {}})
        .seconds;
  };
  const TensorMeta meta = meta_of({1024, 1024});  // 4 MiB
  const double mib = 1 << 20;
  CHECK(seconds(8, "RS(0)", "RR", meta) == Approx(3e-6 + 3 * mib / 100e9));
  CHECK(seconds(4, "RS(0)", "RR", meta) == Approx(3e-6 + 3 * mib / 100e9));
  CHECK(seconds(2, "RS(0)", "RR", meta) == Approx(12e-6 + 3 * mib / 10e9));
  CHECK(seconds(8, "S(0)R", "RR", meta) == Approx(2e-6 + 2 * mib / 100e9));
  // Ranks of a node fetch a part each from other nodes, and then exchange their parts.
  CHECK(seconds(4, "S(0)R", "RR", meta) == Approx(11e-6 + 0.5 * mib / 10e9 + 3e-6 + 3 * mib / 100e9));
  // A reduction over both: all at once between nodes would be slower than its larger half within them.
  cost.ranks_per_node = 4;
  const PlanOptions two_levels{std::make_shared<const CostModel>(cost), {}};
  const auto plan = plan_redistribution(mesh, meta, layout("P(sum)P(sum)"), layout("RR"), two_levels);
  INFO(plan.explain());
  CHECK(plan.seconds <
        0.3 * cost.collective(Collective::kAllReduce, GroupExtent::of_links(8, true), 2 * 4 * 1024 * 1024 * 7 / 8));
  EXPECT_PLAN(plan, "rs(tp), ar(dp), ag(tp)");
  EXPECT_PLAN(plan_redistribution(mesh, meta, layout("P(sum)R"), layout("RR"), two_levels), "slice, ar(dp), ag(tp)");
  EXPECT_PLAN(plan_redistribution(mesh, meta, layout("S(0)R"), layout("RR"), two_levels), "slice, ag(dp), ag(tp)");
}

TEST_CASE("worlds and their cost models", "[cost_model]") {
  if (const char* path = std::getenv("DTENSOR_COST_MODEL"); path != nullptr && *path != '\0') return;
  const World abstract = World::abstract(4), local = World::local(4);
  CHECK(*cost_model(abstract) == CostModel());
  CostModel reads_in_place;
  reads_in_place.uses_staging_buffers = false;
  CHECK(*cost_model(local) == reads_in_place);
  set_cost_model(local, unusual());
  CHECK(*cost_model(local) == unusual());
  CHECK(*cost_model(World::local(4)) == reads_in_place);
  CHECK(*cost_model(abstract) == CostModel());
}

}  // namespace
}  // namespace dtensor
