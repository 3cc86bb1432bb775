// search_module_layouts() over settings of the program, micro-batches, and models of fewer layers than the whole.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/search_module_layouts.h"
#include "mesh/world.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::kLayers;
using testing::make_blocks;
using testing::round_numbers;
using testing::sequences;
using torch::Tensor;
namespace nn = torch::nn;

SearchModuleLayoutsOptions four_ranks() {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.cost_model = round_numbers();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 2; };
  options.optimizer = [](std::vector<Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);
  };
  options.max_steps = 40;
  return options;
}

// A step as a program writes it: the second one, after which the optimizer has its states.
StepPrediction written_out(const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options) {
  const DeviceMesh mesh(World::abstract(4), {layouts.mesh[0].second, layouts.mesh[1].second}, {"dp", "tp"});
  set_cost_model(mesh.world(), *options.cost_model);
  const MeshScope on_mesh(mesh);
  const ModelWithLoss made = make_blocks({kLayers, layouts.settings});
  apply_layouts(*made.model, mesh, layouts);
  const auto optimizer = options.optimizer(made.model->parameters());
  const int64_t rows = 16 / layouts.micro_batches;
  std::vector<Tensor> batch;
  for (int i = 0; i < 2; ++i) batch.push_back(zeros({rows, 8}, mesh, {Shard(0), Replicate()}, {.dtype = at::kLong}));
  const auto step = [&] {
    optimizer->zero_grad();
    for (int64_t i = 0; i < layouts.micro_batches; ++i) made.loss(batch).backward();
    optimizer->step();
  };
  step();
  return predict_step(step, mesh.world());
}

void check_alike(const StepPrediction& a, const StepPrediction& b) {
  CAPTURE(a.to_string(), b.to_string());
  CHECK(a.seconds() == Approx(b.seconds()).epsilon(1e-9));
  CHECK(a.flops == Approx(b.flops).epsilon(1e-12));
  CHECK(a.memory_traffic == b.memory_traffic);
  CHECK(a.operators == b.operators);
  CHECK(a.peak_bytes == b.peak_bytes);
  REQUIRE(a.communication.size() == b.communication.size());
  for (const PredictedCollectives& row : a.communication) {
    CAPTURE(row.name());
    int64_t count = 0, bytes = 0;
    for (const PredictedCollectives& other : b.communication) {
      if (other.name() == row.name()) count += other.count, bytes += other.bytes;
    }
    CHECK(count == row.count);
    CHECK(bytes == row.bytes);
  }
}

TEST_CASE("search_module_layouts: a step is predicted as the program runs it, on few layers and on all",
          "[dtensor][search_module_layouts]") {
  for (const int64_t layers : {int64_t{0}, kLayers}) {
    for (const int64_t micro_batches : {1, 4}) {
      for (const int64_t again : {0, 1}) {
        if (layers == 0 && micro_batches * (1 + again) != 8) continue;  // once
        SearchModuleLayoutsOptions options = four_ranks();
        options.layers = layers;
        options.max_steps = 8;
        options.micro_batches = {micro_batches};
        options.settings = {{"checkpoint", {again}}};
        const ModuleLayoutSearch found = search_module_layouts(make_blocks, sequences(), options);
        CAPTURE(layers, micro_batches, again, found.explain());
        CHECK(found.best.micro_batches == micro_batches);
        CHECK(found.best.settings == NamedNumbers{{"checkpoint", again}});
        check_alike(found.best.step, written_out(found.best, options));
        for (const ModuleLayouts& other : found.alternatives) {  // these were tried on few layers alone
          const StepPrediction exact = written_out(other, options);
          CHECK(other.step.seconds() == Approx(exact.seconds()).epsilon(1e-9));
          CHECK(static_cast<double>(other.step.peak_bytes) ==
                Approx(static_cast<double>(exact.peak_bytes)).epsilon(0.01));
        }
      }
    }
  }
}

TEST_CASE("search_module_layouts: models of few layers lead to the same layouts as the whole",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = four_ranks();
  options.optimizer = nullptr;
  const ModuleLayoutSearch whole = search_module_layouts(make_blocks, sequences(), options);
  options.layers = kLayers;
  const ModuleLayoutSearch few = search_module_layouts(make_blocks, sequences(), options);
  CAPTURE(few.explain(), whole.explain());
  CHECK(few.best.step.seconds() == Approx(whole.best.step.seconds()).epsilon(1e-9));
  CHECK(few.best.styles.to_string() == whole.best.styles.to_string());
}

TEST_CASE("search_module_layouts: less memory takes micro-batches, then computing activations again",
          "[dtensor][search_module_layouts]") {
  SearchModuleLayoutsOptions options = four_ranks();
  options.layers = kLayers;
  options.optimizer = nullptr;
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };  // no styles to choose
  options.micro_batches = {1, 4};
  options.settings = {{"checkpoint", {0, 1}}};
  const std::vector<Tensor> long_sequences(2, torch::zeros({16, 96}, torch::kLong));  // activations prevail
  std::vector<std::string> names;
  double seconds = 0;
  for (;;) {  // until nothing fits
    ModuleLayoutSearch found;
    const std::string error =
        testing::error_text([&] { found = search_module_layouts(make_blocks, long_sequences, options); });
    if (!error.empty()) {
      CHECK_THAT(error, Catch::Contains("no choice that was tried fits"));
      break;
    }
    CHECK(found.best.step.seconds() >= seconds);
    CHECK(found.best.step.peak_bytes <= options.max_bytes);
    seconds = found.best.step.seconds();
    names.push_back(found.best.name());
    options.max_bytes = found.best.step.peak_bytes - 1;
  }
  CAPTURE(names);
  REQUIRE(names.size() >= 3);
  CHECK(names.front() == "dp=4 tp=1 checkpoint=0");
  CHECK(names.back() == "dp=4 tp=1 checkpoint=1 micro_batches=4 fully_shard(blocks.*, the model)");
}

TEST_CASE("search_module_layouts: errors of settings, micro-batches and layers", "[dtensor][search_module_layouts]") {
  const auto text = [](const MakeModel& make, const std::function<void(SearchModuleLayoutsOptions&)>& change) {
    SearchModuleLayoutsOptions options = four_ranks();
    change(options);
    return testing::error_text([&] { search_module_layouts(make, sequences(), options); });
  };
  const auto has = [](const std::string& all, const std::string& part) {
    CAPTURE(all, part);
    CHECK(all.find(part) != std::string::npos);
  };
  has(text(make_blocks, [](auto& o) { o.settings = {{"checkpoint", {}}}; }), "'checkpoint' has no values to try");
  has(text(make_blocks,
           [](auto& o) {
             o.settings = {{"checkpoint", {0}}, {"checkpoint", {1}}};
           }),
      "'checkpoint' is the name of two mesh dims or settings");
  has(text(make_blocks,
           [](auto& o) {
             o.settings = {{"recompute", {1}}};
           }),
      "there is no setting 'checkpoint', only: recompute");
  has(text(make_blocks, [](auto& o) { o.micro_batches = {}; }), "micro_batches has no numbers");
  has(text(make_blocks, [](auto& o) { o.micro_batches = {2, 0}; }), "micro_batches has 0");
  has(text(make_blocks, [](auto& o) { o.micro_batches = {3}; }), "of sizes [16, 8] cannot be divided into 3");
  has(text(make_blocks, [](auto& o) { o.micro_batches = {16}; }), "the data dim 'dp' is larger than a micro-batch");
  has(text(make_blocks, [](auto& o) { o.layers = -1; }), "layers is -1");
  // The whole has a layer that the shorter models do not have.
  const auto other_first = [](const ModelChoice& choice) {
    nn::Sequential model{testing::Mlp(6, 10), testing::Mlp(6, 10)};
    if (choice.layers > 3) model->push_back(nn::Linear(6, 6));
    return ModelWithLoss{model.ptr(), [model](const std::vector<Tensor>& in) {
                           auto forward = model;
                           return forward->forward(in[0].to(torch::kFloat)).square().mean();
                         }};
  };
  has(text(other_first, [](auto& o) { o.layers = 5; }), "the model of 2 layers has other classes of modules");
}

}  // namespace
}  // namespace dtensor
