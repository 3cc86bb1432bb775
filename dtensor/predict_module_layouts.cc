#include "dtensor/predict_module_layouts.h"

#include <c10/util/Exception.h>

#include <limits>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/pipeline_step.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "mesh/world.h"

namespace dtensor {
using namespace internal;

namespace {

// `options` as of a search among `layouts` alone.
SearchModuleLayoutsOptions options_of(const char* function, const MakeModel& make, const ModuleLayouts& layouts,
                                      SearchModuleLayoutsOptions options) {
  TORCH_CHECK_VALUE(make, "[", function, "] make is an empty function");
  options.max_bytes = std::numeric_limits<int64_t>::max();
  options.settings.clear();
  for (const auto& [name, value] : layouts.settings) options.settings.emplace_back(name, std::vector{value});
  return options;
}

}  // namespace

ModuleLayouts predict_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                     const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options) {
  constexpr const char* kFunction = "predict_module_layouts";
  const SearchModuleLayoutsOptions of_layouts = options_of(kFunction, make, layouts, options);
  const ModelArrangement arrangement = arrangement_of(kFunction, layouts, of_layouts, inputs);
  TriedModels models;
  LayoutTrials trials(tried_model(models, {make, inputs, of_layouts, layouts.settings}), arrangement);
  const LayoutTrial& trial = trials.run(layouts);
  if (trial.failure.empty()) trials.run_whole(trial);
  TORCH_CHECK_VALUE(trial.failure.empty(), "[", kFunction, "] a step in the layouts ", layouts.name(),
                    " fails: ", trial.failure);
  ModuleLayouts predicted = layouts;
  predicted.step = trial.whole->step, predicted.memory = trial.whole->memory;
  return predicted;
}

ModuleTimelines predict_module_timelines(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options) {
  constexpr const char* kFunction = "predict_module_timelines";
  const SearchModuleLayoutsOptions of_layouts = options_of(kFunction, make, layouts, options);
  const ModelArrangement arrangement = arrangement_of(kFunction, layouts, of_layouts, inputs);
  const TriedModel tried{make, inputs, of_layouts, layouts.settings};
  const MeshScope on_mesh(arrangement.mesh);
  TrialStep step(tried, arrangement, layouts, arrangement.layers_of_rank(of_layouts.layers));
  step.run_micro_batch();
  ModuleTimelines timelines;
  timelines.micro_batch = predict_timeline([&] { step.run_micro_batch(); }, arrangement.mesh.world());
  if (arrangement.schedule) {
    const StageTransfer transfer = stage_transfer(of_layouts, arrangement, layouts);
    timelines.pipeline = simulate_stages(*arrangement.schedule, timelines.micro_batch, transfer);
  }
  return timelines;
}

}  // namespace dtensor
