// predict_step(): times by formula, the bytes that operators read and write, and errors.
#include "dtensor/predict_step.h"

#include <torch/nn.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "examples/models/llama.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "observe/comm_debug_mode.h"
#include "plan/cost_model.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::round_numbers;
using torch::Tensor;

TEST_CASE("predict_step: a product and a reduction take what the cost model says", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const DeviceMesh mesh(world, {2, 4}, {"dp", "tp"});
  // [64, 256] by [256, 128], split over tp along k: the result is Partial and is reduced over 4 ranks of one node.
  const Tensor a = zeros({64, 256}, mesh, {Replicate(), Shard(1)}),
               b = zeros({256, 128}, mesh, {Replicate(), Shard(0)});
  const StepPrediction p = predict_step([&] { redistribute(a.mm(b), {Replicate(), Replicate()}); }, world);
  CAPTURE(p.to_string());
  const double flops = 2. * 64 * 64 * 128;
  CHECK(p.flops == flops);
  const int64_t moved = 4 * (64 * 64 + 64 * 128 + 64 * 128);
  CHECK(p.memory_traffic == moved);
  CHECK(p.product_seconds == Approx(std::max(flops / 1e12, moved / 2e11)));
  CHECK(p.operator_seconds == 0);
  REQUIRE(p.communication.size() == 1);
  CHECK(p.communication[0].name() == "all_reduce(tp)");
  CHECK_FALSE(p.communication[0].between_nodes);
  const int64_t received = 2 * 4 * 64 * 128 * 3 / 4;
  CHECK(p.communication[0].bytes == received);
  CHECK(p.communication_seconds() == Approx(received / 1e10));
  CHECK(p.live_bytes == 4 * (64 * 64 + 64 * 128));
  CHECK(p.peak_bytes >= p.live_bytes + 4 * 64 * 128);
  CHECK(p.seconds() == Approx(p.product_seconds + p.communication_seconds()));
}

TEST_CASE("predict_step: products take what their dtype takes", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  CostModel model = round_numbers();
  model.flops_by_dtype = {{torch::kBFloat16, 4e9}, {torch::kDouble, 1e9}};
  model.flops_per_second = 2e9;  // the arithmetic takes longer than its reads and writes
  set_cost_model(world, model);
  const DeviceMesh mesh(world, {8}, {"dp"});
  const double flops = 2. * 8 * 32 * 16;
  const auto product_seconds = [&](torch::Dtype dtype, bool grad) {
    const Tensor a = zeros({64, 32}, mesh, {Shard(0)}, {.dtype = dtype}).requires_grad_(grad),
                 b = zeros({32, 16}, mesh, {Replicate()}, {.dtype = dtype});
    return predict_step(
               [&] {
                 const Tensor product = a.mm(b);
                 if (grad) product.square().sum().backward();
               },
               world)
        .product_seconds;
  };
  CHECK(product_seconds(torch::kFloat, false) == Approx(flops / 2e9));
  CHECK(product_seconds(torch::kBFloat16, false) == Approx(flops / 4e9));
  CHECK(product_seconds(torch::kDouble, false) == Approx(flops / 1e9));
  CHECK(product_seconds(torch::kDouble, true) == Approx(2 * flops / 1e9));
}

TEST_CASE("predict_step: each operator that is no view takes the time to start it", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  CostModel model = round_numbers();
  const DeviceMesh mesh(world, {8}, {"dp"});
  const Tensor a = zeros({64, 32}, mesh, {Shard(0)}), b = zeros({32, 64}, mesh, {Replicate()});
  const auto predict = [&](double latency) {
    model.operator_latency = latency;
    set_cost_model(world, model);
    return predict_step([&] { (a.mm(b).view({-1, 8}) + 1).relu(); }, world);
  };
  const StepPrediction without = predict(0), with = predict(0.5);
  CHECK(with.operators == 3);
  CHECK(without.operators == 3);
  CHECK(without.start_seconds == 0);
  CHECK(with.start_seconds == Approx(3 * 0.5));
  CHECK(with.product_seconds == Approx(without.product_seconds + 0.5));
  CHECK(with.operator_seconds == Approx(without.operator_seconds + 2 * 0.5));
  CHECK(with.seconds() == Approx(without.seconds() + 3 * 0.5));
  CHECK(without.to_string().find("to start") == std::string::npos);
  CHECK(with.to_string().find("of which to start 1.50 s, x3") != std::string::npos);
}

TEST_CASE("predict_step: an operator with a measured time takes that", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  CostModel model = round_numbers();
  model.operator_latency = 0.5;
  const DeviceMesh mesh(world, {8}, {"dp"});
  const Tensor a = zeros({64, 32}, mesh, {Shard(0)}), b = zeros({32, 64}, mesh, {Replicate()});
  const double flops = 2. * 8 * 32 * 64, part = 4 * 8 * 64;
  model.operators = {{"view", {{0, 3}}}, {"aten::mm float32", {{flops, 5}}}, {"aten::relu", {{part, 7}}}};
  set_cost_model(world, model);
  const auto step = [&] { (a.mm(b).view({-1, 8}) + 1).relu(); };
  const StepPrediction p = predict_step(step, world);
  CHECK(p.product_seconds == 5);
  const double add = 0.5 + 2 * part / 2e11;
  CHECK(p.operator_seconds == Approx(3 + add + 0.5 + 2 * (7 - 0.5)));  // relu reads and writes a part each
  CHECK(p.operators == 1);                                             // the addition, which has no row
  CHECK(p.start_seconds == 0.5);
  const StepTimeline timeline = predict_timeline(step, world);
  REQUIRE(timeline.spans.size() == 4);
  CHECK(timeline.spans[1].name == "aten::view");
  CHECK(timeline.spans[1].end - timeline.spans[1].begin == Approx(3));
}

TEST_CASE("predict_step: a product with a measured time takes at least its reads and writes",
          "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  CostModel model = round_numbers();
  const DeviceMesh mesh(world, {8}, {"dp"});
  const Tensor row = zeros({1, 4096}, mesh, {Replicate()}), matrix = zeros({4096, 32768}, mesh, {Shard(1)});
  model.operators = {{"aten::mm float32", {{1e6, 1e-9}}}};
  set_cost_model(world, model);
  const StepPrediction p = predict_step([&] { row.mm(matrix); }, world);
  CHECK(p.product_seconds == Approx(4. * (4096 + 4096 * 4096 + 4096) / 2e11));
}

TEST_CASE("predict_step: a group with ranks on two nodes is priced between nodes", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const DeviceMesh mesh(world, {8}, {"dp"});
  const Tensor t = zeros({1000}, mesh, {Partial()});
  const StepPrediction p = predict_step([&] { redistribute(t + t, {Replicate()}); }, world);
  REQUIRE(p.communication.size() == 1);
  CHECK(p.communication[0].between_nodes);
  CHECK(p.communication_seconds() == Approx(2 * 4000 * 7 / 8 / 4e9));
  CHECK(p.operator_seconds == Approx(3 * 4000 / 2e11));
}

TEST_CASE("predict_step: a copy takes what the cost model's copies take", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const Tensor t = zeros({8000}, DeviceMesh(world, {8}, {"dp"}), {Shard(0)});
  const StepPrediction p = predict_step([&] { t.clone(); }, world);
  CHECK(p.memory_traffic == 2 * 4000);
  CHECK(p.operator_seconds == Approx(4000 / 1e11));
}

TEST_CASE("predict_step: the level of a group is that of all its ranks, in any order", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const DeviceMesh mesh(world, {8}, {"dp"}, {0, 4, 5, 6, 7, 1, 2, 3});  // begins and ends on one node
  const Tensor t = zeros({1000}, mesh, {Partial()});
  const StepPrediction p = predict_step([&] { redistribute(t + t, {Replicate()}); }, world);
  REQUIRE(p.communication.size() == 1);
  CHECK(p.communication[0].between_nodes);
  CHECK(p.communication_seconds() == Approx(2 * 4000 * 7 / 8 / 4e9));
}

TEST_CASE("predict_step: lookups and updates of some rows count these rows, not the table", "[dtensor][predict_step]") {
  const World world = World::abstract(2);
  const DeviceMesh mesh(world, {2}, {"dp"});
  Tensor table = zeros({100000, 8}, mesh, {Replicate()});
  const Tensor ids = zeros({4}, mesh, {Replicate()}, {.dtype = torch::kLong});
  const Tensor rows = zeros({4, 8}, mesh, {Replicate()});
  const auto traffic = [&](const std::function<void()>& f) { return predict_step(f, world).memory_traffic; };
  CHECK(traffic([&] { torch::embedding(table, ids); }) == 2 * 4 * 8 * 4 + 4 * 8);
  CHECK(traffic([&] { table.index_select(0, ids); }) == 2 * 4 * 8 * 4 + 4 * 8);
  CHECK(traffic([&] { table.index_copy_(0, ids, rows); }) < 2000);
  CHECK(traffic([&] {
          table.t();
          table.view({-1});
        }) == 0);
  CHECK(traffic([&] { table.mul_(2); }) == 2 * 100000 * 8 * 4);
}

TEST_CASE("predict_step: rows that bags add up are read, not the table", "[dtensor][predict_step]") {
  const World world = World::abstract(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor ids = zeros({600}, mesh, {Replicate()}, {.dtype = torch::kLong});
  const Tensor offsets = zeros({3}, mesh, {Replicate()}, {.dtype = torch::kLong});
  // 500 million rows on each rank, of which 600 are read; with a gradient the operator has another name.
  for (const bool grad : {false, true}) {
    const Tensor table = zeros({1000000000, 64}, mesh, {Shard(0)}).set_requires_grad(grad);
    const StepPrediction p = predict_step([&] { torch::embedding_bag(table, ids, offsets); }, world);
    CHECK(p.memory_traffic >= (600 + 3) * 64 * 4);
    CHECK(p.memory_traffic < (600 + 3) * 64 * 4 + 4 * 600 * 8);  // ids, and what the operator says of the bags
  }
}

TEST_CASE("predict_step: what an operator does not read or write is not counted", "[dtensor][predict_step]") {
  const World world = World::abstract(2);
  const DeviceMesh mesh(world, {2}, {"dp"});
  Tensor t = zeros({1000, 8}, mesh, {Shard(0)});
  const Tensor other = zeros({1000, 8}, mesh, {Shard(0)}), row = zeros({1, 8}, mesh, {Replicate()});
  const int64_t part = 500 * 8 * 4;
  const auto traffic = [&](const std::function<void()>& f) { return predict_step(f, world).memory_traffic; };
  CHECK(traffic([&] { t.zero_(); }) == part);
  CHECK(traffic([&] { t.fill_(2); }) == part);
  CHECK(traffic([&] { t.copy_(other); }) == 2 * part);
  CHECK(traffic([&] { torch::zeros_like(t); }) == part);
  CHECK(traffic([&] { torch::empty_like(t); }) == 0);
  CHECK(traffic([&] { row.expand({1000, 8}).mul(2); }) == 8 * 4 + 1000 * 8 * 4);  // one row, read once
  const Tensor whole = zeros({1000, 8}, mesh, {Replicate()});
  CHECK(traffic([&] { whole.add(row.expand({1000, 8})); }) == 2 * 1000 * 8 * 4 + 8 * 4);
}

TEST_CASE("predict_step: operators that run by no rule count their arguments and results", "[dtensor][predict_step]") {
  const World world = World::abstract(2);
  const DeviceMesh mesh(world, {2}, {"tp"});
  const Tensor t = zeros({1000, 8}, mesh, {Shard(0)});
  const int64_t part = 500 * 8 * 4;
  const auto traffic = [&](const std::function<void()>& f) { return predict_step(f, world).memory_traffic; };
  CHECK(traffic([&] { t.uniform_(); }) == part);
  CHECK(traffic([&] { torch::rand_like(t); }) == part);
  CHECK(traffic([&] {
          t.sizes();
          t.is_same_size(t);
          t.add_(1);
        }) == 2 * part);
  // Classes are split: one pass over the logits for the loss, and one that writes their gradient.
  const Tensor logits = zeros({64, 8000}, mesh, {Shard(1)}).requires_grad_();
  const Tensor target = zeros({64}, mesh, {Replicate()}, {.dtype = torch::kLong});
  const int64_t own = 64 * 4000 * 4;
  const int64_t both = traffic([&] { torch::cross_entropy_loss(logits, target).backward(); });
  CHECK(both >= 3 * own);
  CHECK(both < 3 * own + own / 100);
}

TEST_CASE("predict_step: operators on lists count every tensor, also where they run on lists of parts",
          "[dtensor][predict_step]") {
  const World world = World::abstract(4);
  const DeviceMesh mesh(world, {4}, {"dp"});
  const std::vector<Tensor> list = {zeros({40, 2}, mesh, {Shard(0)}), zeros({5}, mesh, {Replicate()})};
  const auto step = [&] {
    torch::_foreach_mul_(list, 2);
    torch::_foreach_add(list, list);
  };
  step();  // makes the decisions that later calls on lists take
  for (int i = 0; i < 2; ++i) CHECK(predict_step(step, world).memory_traffic == (2 + 3) * 4 * (10 * 2 + 5));
}

TEST_CASE("predict_step: collectives, bytes and FLOP are those of CommDebugMode", "[dtensor][predict_step]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  examples::Llama model(examples::LlamaConfig{});
  distribute_module(*model, mesh, examples::shard_llama);
  const MeshScope scope(mesh);
  const Tensor ids = zeros({4, 6}, mesh, {Shard(0), Replicate()}, {.dtype = torch::kLong});
  CommDebugMode comm;
  const StepPrediction p = predict_step([&] { model(ids).sum().backward(); }, mesh.world());
  int64_t count = 0, bytes = 0;
  for (const auto& row : p.communication) count += row.count, bytes += row.bytes;
  CHECK(count == comm.total());
  CHECK(bytes == comm.bytes());
  CHECK(p.flops == comm.flops());
  CHECK(p.memory_traffic > 0);
  CHECK(p.peak_bytes > p.live_bytes);
}

TEST_CASE("StepPrediction: terms with long names are in line with the others", "[dtensor][predict_step]") {
  StepPrediction p;
  p.communication = {{Collective::kReduceScatter, "dp,tp"}, {Collective::kAllReduce, "tp"}};
  const std::string text = p.to_string();
  CAPTURE(text);
  const auto value_of = [&](const std::string& name) {
    const size_t begin = text.find(name);
    return text.find_first_not_of(' ', begin + name.size()) - begin;
  };
  for (const char* name : {"matrix products", "other operators", "all_reduce(tp)", "memory"})
    CHECK(value_of(name) == value_of("reduce_scatter(dp,tp)"));
}

TEST_CASE("predict_step: a step without distributed tensors is an error", "[dtensor][predict_step]") {
  CHECK(testing::error_text([] {
          predict_step([] { torch::ones({2}) + 1; }, World::abstract(2));
        }).find("distribute its model or its data first") != std::string::npos);
}

TEST_CASE("predict_step: a world that the step does not use is an error", "[dtensor][predict_step]") {
  const DeviceMesh mesh(World::abstract(2), {2}, {"dp"});
  const Tensor t = zeros({4}, mesh, {Shard(0)});
  const auto text = [](const std::function<void()>& step, const World& world) {
    return testing::error_text([&] { predict_step(step, world); });
  };
  CHECK(text([&] { t + t; }, World::abstract(2)).find("give the world of their mesh") != std::string::npos);
  CHECK(text([&] { t + t; }, World()).find("the world is undefined") != std::string::npos);
  CHECK(text(nullptr, mesh.world()).find("the step is an empty function") != std::string::npos);
}

TEST_CASE("predict_step: the peak that a program measures goes on, also after an error", "[dtensor][predict_step]") {
  const World world = World::abstract(2);
  const DeviceMesh mesh(world, {2}, {"dp"});
  const Tensor t = zeros({1000}, mesh, {Replicate()});
  world.memory().reset_peak();
  zeros({8000}, mesh, {Replicate()});
  const int64_t peak = world.memory().peak_bytes();
  CHECK(peak == 9 * 4000);
  CHECK(predict_step([&] { t + t; }, world).peak_bytes == 2 * 4000);
  CHECK(world.memory().peak_bytes() == peak);
  CHECK_THROWS_AS(predict_step([] { throw std::runtime_error("no data"); }, world), std::runtime_error);
  CHECK(world.memory().peak_bytes() == peak);
  const auto larger = [&] {
    const Tensor many = zeros({20000}, mesh, {Replicate()});
    t + t;
  };
  CHECK(predict_step(larger, world).peak_bytes == 22 * 4000);
  CHECK(world.memory().peak_bytes() == 22 * 4000);
}

}  // namespace
}  // namespace dtensor
