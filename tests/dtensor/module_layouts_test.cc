// The memory that a search predicts for layouts by kind.
#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/search_module_layouts.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using testing::make_mlps;
using torch::Tensor;

// Bytes of one layer on a rank: up is 12 x 6 and 12, down 6 x 12 and 6, all floats. Over tp up has half of its rows,
// down half of its columns; over dp groups halve the first dim of each.
constexpr int64_t kReplicatedOverData = 4 * (6 * 6 + 6 + 6 * 6 + 6);
constexpr int64_t kSharded = 4 * (3 * 6 + 3 + 3 * 6 + 3);

TEST_CASE("search_module_layouts: memory by kind, counted by hand", "[dtensor][module_layouts]") {
  SearchModuleLayoutsOptions options;
  options.ranks = 4;
  options.cost_model = testing::round_numbers();
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 2; };
  options.optimizer = [](std::vector<Tensor> parameters) {
    return std::make_shared<torch::optim::AdamW>(std::move(parameters), 1e-3);  // two states as large as a parameter
  };
  options.between_layers = torch::empty({16, 4, 6}, at::kMeta);
  const std::vector<Tensor> inputs = {torch::zeros({16, 4, 6})};
  const MakeModel make = make_mlps;
  for (const int64_t stages : {1, 2}) {
    options.ranks = 4 * stages, options.stages = {stages}, options.micro_batches = {stages};
    options.layers = 8;
    internal::TriedModel tried{make, inputs, options};
    internal::run_on_one_rank(tried);
    internal::LayoutTrials trials(tried, internal::model_arrangements(options, inputs).front());
    for (const bool groups : {false, true}) {
      const internal::LayoutTrial& trial =
          trials.run({groups, false, {internal::ClassStyle::kFirst, internal::ClassStyle::kSecond}});
      CAPTURE(trial.layouts.name(), trial.failure);
      REQUIRE(trial.ran);
      trials.run_whole(trial);
      REQUIRE(trial.whole);
      const int64_t layers = 8 / stages, parameters = layers * (groups ? kSharded : kReplicatedOverData);
      for (const LayoutMemory& memory : {trial.layouts.memory, trial.whole->memory}) {
        CHECK(memory.parameters == parameters);
        CHECK(memory.gradients ==
              (stages == 1 ? parameters : layers * kReplicatedOverData));  // unreduced in a pipeline
        CHECK(memory.optimizer_states == 2 * parameters);
        CHECK(memory.activations > 0);
      }
      const LayoutMemory& whole = trial.whole->memory;
      CHECK(whole.parameters + whole.gradients + whole.optimizer_states + whole.activations ==
            trial.whole->step.peak_bytes);
    }
  }
}

TEST_CASE("search_module_layouts: explain() has the memory by kind", "[dtensor][module_layouts]") {
  SearchModuleLayoutsOptions options = testing::slow_ranks();
  const std::vector<Tensor> inputs(2, torch::zeros({4, 6}, torch::kLong));
  const ModuleLayoutSearch found = search_module_layouts(testing::make_language_model, inputs, options);
  CHECK(found.best.memory.optimizer_states == 0);
  CHECK(found.best.memory.parameters > 0);
  CHECK(found.explain().find("\n  at the peak: " + found.best.memory.to_string() + "\n") != std::string::npos);
  CHECK(LayoutMemory{1024, 2048, 4096, 1 << 20}.to_string() ==
        "parameters 1024 B, gradients 2048 B, optimizer states 4096 B, activations and other 1.0 MiB");
}

}  // namespace
}  // namespace dtensor
