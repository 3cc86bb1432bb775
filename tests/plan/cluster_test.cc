// Clusters: files, errors that name file and field, and the cost models of the ones that are known.
#include "plan/cluster.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/known_clusters.h"
#include "tests/testing/plan_matcher.h"

namespace dtensor {
namespace {

using Catch::Contains;
using Json = nlohmann::json;

// All numbers distinct.
Cluster two_racks() {
  Cluster c;
  c.name = "two racks";
  c.source = "a sheet";
  c.ranks_per_node = 3;
  c.memory_bytes = 7000000001;
  c.memory_bandwidth = 1e12 / 3;
  c.flops_by_dtype = {{at::kFloat, 4e12}, {at::kBFloat16, 1.6e13}};
  c.tf32_flops = 8e12;
  c.within_node = {.latency = 1e-6, .hop_latency = 2e-6, .bandwidth = 1e11};
  c.between_nodes = {.latency = 3e-6, .hop_latency = 0, .bandwidth = 1e10};
  c.efficiency = {.products = 0.5, .memory = 0.25, .links = 0.75, .reason = "measured"};
  return c;
}

TEST_CASE("a cluster survives JSON, with and without TF32", "[cluster]") {
  Cluster cluster = two_racks();
  CHECK(cluster_from_json(cluster.to_json()) == cluster);
  cluster.tf32_flops = 0;
  CHECK(cluster_from_json(cluster.to_json()) == cluster);
  CHECK_FALSE(cluster == two_racks());
}

TEST_CASE("a cluster's cost model has its peaks times their efficiency", "[cluster]") {
  const CostModel model = two_racks().cost_model();
  CHECK(model.ranks_per_node == 3);
  CHECK(model.traffic(1000000) == Approx(1e6 / (1e12 / 3 / 4)));
  CHECK(model.products(1e12, at::kFloat) == Approx(0.5));
  CHECK(model.products(1e12, at::kBFloat16) == Approx(0.125));
  CHECK(model.products(1e12, at::kDouble) == Approx(0.5));  // no figure: that of float32
  CHECK(model.collective(Collective::kAllGather, GroupExtent::within_node(2), 1000000) == Approx(3e-6 + 1e6 / 0.75e11));
  CHECK(model.collective(Collective::kAllReduce, GroupExtent::of_links(4, true), 1000000) ==
        Approx(3e-6 + 1e6 / 0.75e10));
  CHECK(two_racks().cost_model(/*tf32=*/true).products(1e12, at::kFloat) == Approx(0.25));
  CHECK(two_racks().cost_model(/*tf32=*/true).products(1e12, at::kBFloat16) == Approx(0.125));
  const World world = World::abstract(6);
  set_cost_model(world, model);  // accepts it
  Cluster without = two_racks();
  without.tf32_flops = 0;
  CHECK_THROWS_WITH(without.cost_model(true), Contains("two racks has no figure for TF32"));
}

TEST_CASE("known clusters are complete, of dense figures, and give cost models", "[cluster]") {
  CHECK(cluster_names() == std::vector<std::string>{"a100x8", "h100x8", "h200x8", "b200x8", "mi300xx8", "epyc9654x2"});
  for (const std::string& name : cluster_names()) {
    CAPTURE(name);
    const Cluster known = cluster(name);
    CHECK(known.name == name);
    CHECK(cluster_from_json(known.to_json(), name) == known);
    CHECK(known.within_node.bandwidth > known.between_nodes.bandwidth);
    CHECK(known.flops_by_dtype.at(at::kFloat) < known.flops_by_dtype.at(at::kBFloat16));
    CHECK(known.cost_model().ranks_per_node == (name == "epyc9654x2" ? 2 : 8));
  }
  const Cluster h100 = cluster("h100x8");
  CHECK(h100.memory_bytes == 80000000000);
  CHECK(h100.flops_by_dtype.at(at::kBFloat16) == 989.4e12);  // not 1979, with sparsity
  CHECK(h100.flops_by_dtype.at(at::kFloat8_e4m3fn) == 1978.9e12);
  CHECK(cluster("b200x8").flops_by_dtype.at(at::kBFloat16) == 2.25e15);
  CHECK_THROWS_WITH(cluster("h100"), Contains("no cluster `h100`; known are a100x8, h100x8, h200x8, b200x8, mi300xx8"));
}

TEST_CASE("errors in a cluster name file and field", "[cluster]") {
  const auto complaint = [](const std::function<void(Json&)>& change) -> std::string {
    Json json = Json::parse(two_racks().to_json());
    change(json);
    try {
      cluster_from_json(json.dump(), "mine.json");
    } catch (const c10::ValueError& e) {
      return e.what_without_backtrace();
    }
    return "accepted";
  };
  const std::pair<std::function<void(Json&)>, const char*> cases[] = {
      {[](Json& j) { j["colour"] = 1; }, "unknown field `colour`; known are name, source"},
      {[](Json& j) { j["name"] = ""; }, "`name` is \"\"; give a text"},
      {[](Json& j) { j["source"] = 3; }, "`source` is 3; give a text"},
      {[](Json& j) { j["memory_bytes"] = -1; }, "`memory_bytes` is -1; give a whole number greater than 0"},
      {[](Json& j) { j["memory_bytes"] = 8.5e10; }, "`memory_bytes` is 85000000000.0; give a whole number"},
      {[](Json& j) { j["ranks_per_node"] = "8"; }, "`ranks_per_node` is \"8\""},
      {[](Json& j) { j["memory_bandwidth"] = 0; }, "`memory_bandwidth` is 0; give a number greater than 0"},
      {[](Json& j) { j["flops_per_second"] = 1e14; }, "mine.json.flops_per_second: is number, not an object"},
      {[](Json& j) { j["flops_per_second"]["float33"] = 1; }, "mine.json.flops_per_second: unknown field `float33`"},
      {[](Json& j) { j["flops_per_second"]["tf32"] = -1; }, "mine.json.flops_per_second: `tf32` is -1"},
      {[](Json& j) { j["within_node"]["latency"] = -1; }, "mine.json.within_node: `latency` is -1"},
      {[](Json& j) { j["between_nodes"]["bandwidth"] = nullptr; }, "mine.json.between_nodes: `bandwidth` is null"},
      {[](Json& j) { j["efficiency"]["links"] = 1.5; },
       "mine.json.efficiency: `links` is 1.5; give a number of at most 1"},
      {[](Json& j) { j["efficiency"]["products"] = 0; }, "mine.json.efficiency: `products` is 0"},
  };
  for (const auto& [change, text] : cases) CHECK_THAT(complaint(change), Contains(text) && Contains("mine.json"));

  for (const char* field : {"name", "source", "ranks_per_node", "memory_bytes", "memory_bandwidth", "flops_per_second",
                            "within_node", "between_nodes", "efficiency"}) {
    CHECK_THAT(complaint([&](Json& j) { j.erase(field); }),
               Contains("mine.json: `" + std::string(field) + "` is missing"));
  }
  const auto lacks = [&](const char* object, const char* field) {
    CHECK_THAT(complaint([&](Json& j) { j[object].erase(field); }),
               Contains("mine.json." + std::string(object) + ": `" + field + "` is missing"));
  };
  lacks("flops_per_second", "float32");
  lacks("within_node", "latency");
  lacks("between_nodes", "hop_latency");
  lacks("efficiency", "reason");
  CHECK(complaint([](Json&) {}) == "accepted");
}

TEST_CASE("a cluster is loaded from its file", "[cluster]") {
  const char* directory = std::getenv("TEST_TMPDIR");
  const std::string path = std::string(directory != nullptr ? directory : "/tmp") + "/dtensor_cluster_test.json";
  std::ofstream(path) << two_racks().to_json();
  CHECK(load_cluster(path) == two_racks());
  std::ofstream(path) << "{";
  CHECK_THROWS_WITH(load_cluster(path), Contains(path) && Contains("is no JSON"));
  std::remove(path.c_str());
  CHECK_THROWS_WITH(load_cluster(path), Contains("cannot read " + path));
}

}  // namespace
}  // namespace dtensor
