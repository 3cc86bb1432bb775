// search_layouts(): the best mesh of models whose best mesh is known, and errors.
#include "dtensor/search_layouts.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/factories.h"
#include "dtensor/fully_shard.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/scopes.h"
#include "examples/models/llama.h"
#include "mesh/world.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::round_numbers;
using torch::Tensor;
namespace nn = torch::nn;

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
  // Three values that are kept, or computed where they are needed.
  const auto make_step = [](const LayoutChoice& choice) -> std::function<void()> {
    const Tensor x = zeros({1000}, choice.mesh, {Replicate(), Replicate()});
    std::vector<Tensor> kept;
    if (choice.setting("keep") == 1) kept = {x * 2, x * 2, x * 2};
    return [x, kept] {
      for (size_t i = 0; i < 3; ++i) {
        const Tensor value = kept.empty() ? x * 2 : kept[i];
        x + value;
      }
    };
  };
  SearchLayoutsOptions options = sixteen_ranks();
  options.settings = {{"keep", {0, 1}}};
  options.allows = [](const LayoutChoice& c) { return c.mesh.size("tp") == 1; };
  const LayoutSearch all = search_layouts(make_step, options);
  CHECK(all.best().name() == "dp=16 tp=1 keep=1");
  CHECK(all.best().step.peak_bytes == 5 * 4000);
  options.max_bytes = 5 * 4000 - 1;
  const LayoutSearch limited = search_layouts(make_step, options);
  CHECK(limited.best().name() == "dp=16 tp=1 keep=0");
  CHECK(limited.best().step.peak_bytes == 3 * 4000);
  options.max_bytes = 1;
  const LayoutSearch none = search_layouts(make_step, options);
  CHECK(testing::error_text([&] { none.best(); }).find("no choice fits") != std::string::npos);
  CHECK(none.explain().find("2 need more than 1 B") != std::string::npos);
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
        }).find("no setting 'rows'; the options have no settings") != std::string::npos);
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
