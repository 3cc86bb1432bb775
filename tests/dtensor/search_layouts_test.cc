// predict_step() and search_layouts(): times by formula, the best mesh of models whose best mesh is known, and errors.
#include "dtensor/search_layouts.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/factories.h"
#include "dtensor/fully_shard.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "examples/models/llama.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "observe/comm_debug_mode.h"
#include "plan/cost_model.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// A cluster with round numbers: nodes of 4 ranks, 1 TFLOP/s, copies of 100 GB/s, 10 GB/s within a node, 1 GB/s between.
CostModel round_numbers() {
  CostModel model;
  model.ranks_per_node = 4;
  model.flops_per_second = 1e12;
  model.copy_bandwidth = 1e11;
  model.within_node.fill({0, 0, 1e10});
  model.between_nodes.fill({0, 0, 1e9});
  return model;
}

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

TEST_CASE("predict_step: a group with ranks on two nodes is priced between nodes", "[dtensor][predict_step]") {
  const World world = World::abstract(8);
  set_cost_model(world, round_numbers());
  const DeviceMesh mesh(world, {8}, {"dp"});
  const Tensor t = zeros({1000}, mesh, {Partial()});
  const StepPrediction p = predict_step([&] { redistribute(t + t, {Replicate()}); }, world);
  REQUIRE(p.communication.size() == 1);
  CHECK(p.communication[0].between_nodes);
  CHECK(p.communication_seconds() == Approx(2 * 4000 * 7 / 8 / 1e9));
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
  CHECK(p.communication_seconds() == Approx(2 * 4000 * 7 / 8 / 1e9));
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

// One layer whose rows of activations and weights are given: replicating the weight costs its gradient's reduction,
// sharding it costs that of the activations.
std::function<void()> one_layer(const LayoutChoice& choice, int64_t batch, int64_t width) {
  const MeshScope on_mesh(choice.mesh);
  auto layer = std::make_shared<nn::LinearImpl>(nn::LinearOptions(width, width).bias(false));
  parallelize_module(*layer, choice.mesh, {{"", RowwiseParallel()}}, {.mesh_dim = "tp"});
  auto optimizer = std::make_shared<torch::optim::SGD>(layer->parameters(), 0.1);
  const Tensor x = zeros({batch, width}, choice.mesh, {Shard(0), Shard(1)});
  return [=] {
    optimizer->zero_grad();
    layer->forward(x).sum().backward();
    optimizer->step();
  };
}

SearchLayoutsOptions sixteen_ranks() {
  SearchLayoutsOptions options;
  options.ranks = 16;
  options.mesh_dims = {"dp", "tp"};
  options.cost_model = round_numbers();
  return options;
}

TEST_CASE("search_layouts: many rows choose data parallelism, few rows tensor parallelism",
          "[dtensor][search_layouts]") {
  const auto best_of = [](int64_t batch, int64_t width) {
    const LayoutSearch search =
        search_layouts([&](const LayoutChoice& choice) { return one_layer(choice, batch, width); }, sixteen_ranks());
    CAPTURE(search.explain());
    CHECK(search.candidates.size() == 5);  // 1 x 16, 2 x 8, 4 x 4, 8 x 2, 16 x 1
    return search.best().name();
  };
  CHECK(best_of(/*batch=*/16384, /*width=*/64) == "dp=16 tp=1");
  CHECK(best_of(/*batch=*/16, /*width=*/2048) == "dp=1 tp=16");
}

TEST_CASE("search_layouts: choices beyond max_bytes do not win, and the text says what they need",
          "[dtensor][search_layouts]") {
  const auto make_step = [](const LayoutChoice& choice) { return one_layer(choice, 16384, 256); };
  SearchLayoutsOptions options = sixteen_ranks();
  const LayoutSearch all = search_layouts(make_step, options);
  const int64_t needed = all.best().step.peak_bytes;
  int64_t least = needed;
  for (const auto& c : all.candidates) least = std::min(least, c.step.peak_bytes);
  options.max_bytes = needed - 1;
  const LayoutSearch limited = search_layouts(make_step, options);
  CAPTURE(limited.explain());
  if (least < needed) {
    CHECK(limited.best().name() != all.best().name());
    CHECK(limited.best().step.peak_bytes < needed);
  }
  options.max_bytes = 1;
  const LayoutSearch none = search_layouts(make_step, options);
  CHECK(testing::error_text([&] { none.best(); }).find("no choice fits") != std::string::npos);
  CHECK(none.explain().find("5 need more than 1 B") != std::string::npos);
}

TEST_CASE("search_layouts: settings are tried in all combinations, and what fails is listed",
          "[dtensor][search_layouts]") {
  SearchLayoutsOptions options = sixteen_ranks();
  options.settings = {{"rows", {16, 32}}};
  options.allows = [](const LayoutChoice& c) { return c.mesh.size("tp") <= 4; };
  std::vector<int64_t> done;
  options.progress = [&](int64_t n, int64_t of) {
    done.push_back(n);
    CHECK(of == 6);
  };
  const auto make_step = [](const LayoutChoice& c) {
    TORCH_CHECK(c.mesh.size("dp") < 16 || c.setting("rows") == 16, "32 rows are too many for ", c.mesh.size("dp"));
    return one_layer(c, c.setting("rows"), 64);
  };
  const LayoutSearch search = search_layouts(make_step, options);
  CHECK(done == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(search.candidates.back().name() == "dp=16 tp=1 rows=32");
  CHECK(search.candidates.back().failure.find("32 rows are too many") != std::string::npos);
  CHECK(search.explain().find("dp=16 tp=1 rows=32 failed: 32 rows are too many") != std::string::npos);
  CHECK(search_layouts(make_step, options).to_json() == search.to_json());  // the same at every call
  CHECK(testing::error_text([&] {
          make_step({DeviceMesh(World::abstract(16), {16, 1}, {"dp", "tp"}), {}});
        }).find("no setting 'rows'; SearchLayoutsOptions::settings is empty") != std::string::npos);
}

TEST_CASE("search_layouts: wrong options are errors", "[dtensor][search_layouts]") {
  const auto text = [](const std::function<void(SearchLayoutsOptions&)>& change) {
    SearchLayoutsOptions options = sixteen_ranks();
    change(options);
    return testing::error_text(
        [&] { search_layouts([](const LayoutChoice& c) { return one_layer(c, 16, 64); }, options); });
  };
  CHECK(text([](auto& o) { o.ranks = 0; }).find("ranks is 0") != std::string::npos);
  CHECK(text([](auto& o) { o.mesh_dims = {}; }).find("mesh_dims is empty") != std::string::npos);
  CHECK(text([](auto& o) { o.mesh_dims = {"tp", "tp"}; }).find("'tp' is the name of two") != std::string::npos);
  CHECK(text([](auto& o) { o.settings = {{"x", {}}}; }).find("'x' has no values") != std::string::npos);
  CHECK(text([](auto& o) { o.max_choices = 4; }).find("5 choices, more than max_choices = 4") != std::string::npos);
  CHECK(text([](auto& o) { o.allows = [](const auto&) { return false; }; }).find("none of the 5") != std::string::npos);
  CHECK(text([](auto& o) { o.cost_model->flops_per_second = 0; }).find("`flops_per_second` is 0") != std::string::npos);
  CHECK(testing::error_text([] { search_layouts(nullptr, sixteen_ranks()); }).find("make_step is an empty function") !=
        std::string::npos);
}

TEST_CASE("search_layouts: too many choices are an error before they are listed", "[dtensor][search_layouts]") {
  const std::vector<int64_t> ten = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto text = [&](int settings, const std::function<bool(const LayoutChoice&)>& allows) {
    SearchLayoutsOptions options = sixteen_ranks();
    for (int s = 0; s < settings; ++s) options.settings.emplace_back("s" + std::to_string(s), ten);
    options.allows = allows;
    return testing::error_text(
        [&] { search_layouts([](const LayoutChoice& c) { return one_layer(c, 16, 64); }, options); });
  };
  CHECK(text(12, nullptr).find("there are 5000000000000 choices") != std::string::npos);
  CHECK(text(40, nullptr).find("more than max_choices = 1000") != std::string::npos);
  CHECK(text(12, [](const LayoutChoice&) { return true; }).find("allows more than max_choices = 1000") !=
        std::string::npos);
}

TEST_CASE("search_layouts: whatever a choice throws is listed, and the others are tried", "[dtensor][search_layouts]") {
  const auto make_step = [](const LayoutChoice& c) -> std::function<void()> {
    switch (c.mesh.size("dp")) {
      case 1:
        throw 1;
      case 2:
        throw std::runtime_error("");
      case 4:
        return nullptr;
      case 8:
        return [] { throw std::runtime_error("\xff"); };
      default:
        return one_layer(c, 16, 64);
    }
  };
  const LayoutSearch search = search_layouts(make_step, sixteen_ranks());
  REQUIRE(search.candidates.size() == 5);
  CHECK(search.best().name() == "dp=16 tp=1");
  CHECK(search.candidates[1].failure == "an exception that is not a std::exception");
  CHECK(search.candidates[2].failure == "an exception without a text");
  CHECK(search.candidates[3].failure == "make_step returned an empty function");
  CHECK(search.candidates[4].failure == "\xff");
  CHECK(search.to_json().find("make_step returned an empty function") != std::string::npos);
}

// Without fully_shard every rank holds all states, so that the models fit only where tp or the groups divide them.
TEST_CASE("search_layouts: a Llama by tensor parallelism and groups, in memory for a quarter of its states",
          "[dtensor][search_layouts]") {
  examples::LlamaConfig config;
  config.vocab = 256;
  config.width = 64;
  config.hidden = 128;
  config.layers = 3;
  const auto make_step = [&](const LayoutChoice& choice) -> std::function<void()> {
    const MeshScope on_mesh(choice.mesh);
    auto model = std::make_shared<examples::Llama>(config);
    distribute_module(**model, choice.mesh, examples::shard_llama);
    if (choice.setting("groups") == 1) {
      for (const auto& block : *(*model)->blocks) fully_shard(*block, choice.mesh, {.mesh_dim = "dp"});
      fully_shard(**model, choice.mesh, {.mesh_dim = "dp"});
    }
    auto optimizer = std::make_shared<torch::optim::AdamW>((*model)->parameters(), 1e-3);
    const Tensor ids = zeros({16, 4}, choice.mesh, {Shard(0), Replicate()}, {.dtype = torch::kLong});
    return [=, mesh = choice.mesh] {
      const MeshScope scope(mesh);
      optimizer->zero_grad();
      (*model)->forward(ids).square().mean().backward();
      optimizer->step();
    };
  };
  SearchLayoutsOptions options = sixteen_ranks();
  options.settings = {{"groups", {0, 1}}};
  options.allows = [](const LayoutChoice& c) { return c.mesh.size("tp") <= 4; };  // there are four heads of keys
  const LayoutSearch search = search_layouts(make_step, options);
  CAPTURE(search.explain());
  for (const auto& c : search.candidates) CHECK(c.failure.empty());
  const auto find = [&](const std::string& name) -> const StepPrediction& {
    for (const auto& c : search.candidates) {
      if (c.name() == name) return c.step;
    }
    throw std::out_of_range(name);
  };
  CHECK(find("dp=16 tp=1 groups=1").live_bytes < find("dp=16 tp=1 groups=0").live_bytes / 8);
  CHECK(find("dp=4 tp=4 groups=0").live_bytes < find("dp=16 tp=1 groups=0").live_bytes / 3);
}

}  // namespace
}  // namespace dtensor
