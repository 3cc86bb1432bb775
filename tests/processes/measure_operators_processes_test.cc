// Times of operators that are measured in several processes, one rank each.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "dtensor/factories.h"
#include "dtensor/gather_texts.h"
#include "dtensor/measure_operators.h"
#include "plan/cost_model.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using internal::gather_texts;
using internal::ranks_of;
using torch::Tensor;

TEST_CASE("measure_operators: all processes get one table, with the times of the slowest rank", "[processes]") {
  const World& world = job_world();
  const int64_t last = world.size() - 1;
  const DeviceMesh mesh(world, {world.size()}, {"dp"});
  const Tensor rows = zeros({2 * world.size(), 64}, mesh, {Shard(0)});
  const Tensor uneven = zeros({2 * world.size() - 1, 64}, mesh, {Shard(0)});  // 2 rows on each rank, 1 on the last one
  CostModel model;
  model.operators = measure_operators({[&] {
                                        if (own_rank() == last)
                                          std::this_thread::sleep_for(std::chrono::milliseconds(30));
                                        rows.neg();
                                        uneven.exp();
                                      }},
                                      world, 3);
  REQUIRE(model.operators.at("aten::neg").size() == 1);
  CHECK(model.operators.at("aten::neg")[0].seconds >= 30e-3);

  REQUIRE(model.operators.at("aten::exp").size() == 1);
  CHECK(model.operators.at("aten::exp")[0].amount == 2 * 4 * 2 * 64);  // of the rank with most rows, on all ranks

  const std::vector<std::string> tables = gather_texts(ranks_of(world), model.to_json(), "test");
  CHECK(absl::c_all_of(tables, [&](const std::string& table) { return table == tables.front(); }));
}

}  // namespace
}  // namespace dtensor
