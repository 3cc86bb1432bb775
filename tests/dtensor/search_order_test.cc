// What search_module_layouts() tries of pipelines, and what it leaves out: the lower bound of a step, the steps for
// each arrangement, the styles with which it starts, and choices that turn out not to fit.
#include <torch/nn.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/pipeline_step.h"
#include "dtensor/search_module_layouts.h"
#include "mesh/world.h"
#include "tests/dtensor/round_numbers.h"
#include "tests/dtensor/searched_models.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using testing::make_mlps;
using torch::Tensor;
using Arrangements = std::vector<internal::ModelArrangement>;

std::vector<Tensor> rows() { return {torch::zeros({16, 4, 6})}; }

// Pipelines of 8 layers, with arithmetic so slow that products are most of a step.
SearchModuleLayoutsOptions slow_pipelines(int64_t ranks, std::vector<int64_t> stages,
                                          std::vector<int64_t> micro_batches) {
  SearchModuleLayoutsOptions options;
  options.ranks = ranks;
  options.cost_model = testing::round_numbers();
  options.cost_model->flops_per_second = 1e6;
  options.layers = 8;
  options.stages = std::move(stages);
  options.micro_batches = std::move(micro_batches);
  options.between_layers = torch::empty({16, 4, 6}, at::kMeta);
  return options;
}

// ------------------------------------------------------------ the lower bound

void check_bounds(const SearchModuleLayoutsOptions& options, bool is_zero) {
  using internal::ClassStyle;
  const std::vector<Tensor> inputs = rows();
  const MakeModel make = make_mlps;
  internal::TriedModel tried{make, inputs, options};
  internal::run_on_one_rank(tried);
  for (const internal::ModelArrangement& arrangement : internal::model_arrangements(options, inputs)) {
    internal::LayoutTrials trials(tried, arrangement);
    const double least = internal::least_seconds(tried, arrangement);
    CHECK((least == 0) == is_zero);
    for (const bool groups : {false, true}) {
      for (const ClassStyle second : {ClassStyle::kReplicated, ClassStyle::kSecond}) {
        const internal::LayoutTrial& trial = trials.run({groups, false, {ClassStyle::kFirst, second}});
        CAPTURE(trial.layouts.name(), trial.failure, trial.layouts.step.to_string());
        REQUIRE(trial.ran);
        CHECK(least <= trial.layouts.step.seconds() * (1 + 1e-9));
      }
    }
  }
}

TEST_CASE("search_module_layouts: no choice is faster than the lower bound", "[dtensor][search_order]") {
  for (const int64_t layers : {4, 8, 16}) {  // of a pipeline rank: 1, 2, 4
    SearchModuleLayoutsOptions options = slow_pipelines(4, {1, 4}, {2, 4});
    options.layers = layers;
    options.schedules = {"GPipe", "1F1B", "interleaved 1F1B", "ZB-H1"};
    check_bounds(options, false);
  }
}

TEST_CASE("search_module_layouts: there is no lower bound with a table of measured operators",
          "[dtensor][search_order]") {
  SearchModuleLayoutsOptions options = slow_pipelines(4, {1, 4}, {4});
  for (const char* product : {"aten::mm float32", "aten::addmm float32", "aten::bmm float32"})
    options.cost_model->operators[product] = {{5000, 1e-9}, {9000, 1}};  // small ones take next to nothing
  check_bounds(options, true);
}

TEST_CASE("search_module_layouts: the bound is not negative where starts take longer than products",
          "[dtensor][search_order]") {
  const MakeModel make = [](const ModelChoice& choice) -> ModelWithLoss {
    const ModelWithLoss made = make_mlps(choice);
    return {made.model, [loss = made.loss](const std::vector<Tensor>& in) {
              const Tensor wide = in.at(0).repeat({1, 1, 1000});  // products of 2 and 3 layers are longer than starts
              return loss(in) + wide.bmm(wide.transpose(1, 2)).sum();
            }};
  };
  SearchModuleLayoutsOptions options = slow_pipelines(4, {2}, {4});
  options.cost_model->flops_per_second = 1e9, options.cost_model->operator_latency = 1e-4;
  options.layers = 64;
  CHECK(search_module_layouts(make, rows(), options).best.stages == 2);
}

// ------------------------------------------------------------ the order

TEST_CASE("search_module_layouts: few steps are for the arrangements with the smallest bounds",
          "[dtensor][search_order]") {
  SearchModuleLayoutsOptions options = slow_pipelines(4, {2}, {1, 2, 4, 8});
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  options.max_steps = 2;
  const ModuleLayoutSearch found = search_module_layouts(make_mlps, rows(), options);
  CAPTURE(found.explain());
  CHECK(found.best.micro_batches == 8);
  CHECK_FALSE(found.complete);
}

TEST_CASE("search_module_layouts: on a mesh without tensor parallelism no class has a style",
          "[dtensor][search_order]") {
  const ModuleLayoutSearch found = search_module_layouts(make_mlps, rows(), slow_pipelines(4, {2}, {4}));
  CAPTURE(found.explain());
  REQUIRE(found.best.mesh == NamedNumbers{{"dp", 2}, {"tp", 1}});  // tried after tp=2, from the styles there
  CHECK(found.best.styles.entries.empty());
  for (const StyleGain& gain : found.gains) CHECK_FALSE(gain.style);
}

// On 4 layers and more the step needs memory that those of 2 and 3 layers do not show.
TEST_CASE("search_module_layouts: what was left out is tried where the best does not fit on all layers",
          "[dtensor][search_order]") {
  const MakeModel make = [](const ModelChoice& choice) -> ModelWithLoss {
    const ModelWithLoss made = make_mlps(choice);
    if (choice.layers < 4) return made;
    return {made.model, [loss = made.loss](const std::vector<Tensor>& in) {
              return loss(in) + in.at(0).repeat({1, 10000, 1}).sum();
            }};
  };
  SearchModuleLayoutsOptions options = slow_pipelines(8, {2, 8}, {2});
  options.allows = [](const DeviceMesh& mesh) { return mesh.size("tp") == 1; };
  options.max_bytes = 1 << 18;
  const ModuleLayoutSearch found = search_module_layouts(make, rows(), options);
  CAPTURE(found.explain());
  CHECK(found.best.stages == 8);
  CHECK(found.best.step.peak_bytes <= options.max_bytes);
}

TEST_CASE("search_module_layouts: numbers of micro-batches that a schedule has not are left out",
          "[dtensor][search_order]") {
  for (const int64_t per_rank : {1, 2}) {
    SearchModuleLayoutsOptions options = slow_pipelines(4, {2 * per_rank}, {1, 2});
    options.schedules = {"interleaved 1F1B"}, options.stages_per_rank = per_rank;
    const Arrangements all = internal::model_arrangements(options, rows());
    CHECK(all.size() == 2);  // dp=1 tp=2, dp=2 tp=1
    for (const internal::ModelArrangement& arrangement : all) CHECK(arrangement.micro_batches == 2);
  }
}

TEST_CASE("search_module_layouts: layouts that are not run have no prediction of before", "[dtensor][search_order]") {
  SearchModuleLayoutsOptions options = slow_pipelines(4, {2}, {4});
  options.max_bytes = 1;
  const std::vector<Tensor> inputs = rows();
  const MakeModel make = make_mlps;
  internal::TriedModel tried{make, inputs, options};
  internal::run_on_one_rank(tried);
  internal::LayoutTrials trials(tried, internal::model_arrangements(options, inputs).front());
  ModuleLayouts before;
  before.step.product_seconds = 5, before.memory.gradients = 7;
  const internal::LayoutTrial& trial = trials.run(before);
  CHECK_FALSE(trial.ran);
  CHECK(trial.layouts.step.seconds() == 0);
  CHECK(trial.layouts.memory.gradients == 0);
  CHECK(trial.layouts.step.peak_bytes > 1);
}

}  // namespace
}  // namespace dtensor
