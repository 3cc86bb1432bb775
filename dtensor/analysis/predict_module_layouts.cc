#include "dtensor/predict_module_layouts.h"

#include <c10/util/Exception.h>

#include <limits>
#include <string>
#include <vector>

#include "dtensor/analysis/layout_trials.h"
#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/pipeline_step.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/scopes.h"
#include "mesh/world.h"

namespace dtensor {
using namespace internal;

namespace {

// `options` as of a search that tries `layouts` alone.
SearchModuleLayoutsOptions options_of(const char* function, const MakeModel& make, const ModuleLayouts& layouts,
                                      SearchModuleLayoutsOptions options) {
  TORCH_CHECK_VALUE(make, "[", function, "] make is an empty function");
  for (const std::string& fault : {mesh_fault(layouts), pipeline_fault(layouts)})
    TORCH_CHECK_VALUE(fault.empty(), "[", function, "] of the layouts ", fault);
  options.max_bytes = std::numeric_limits<int64_t>::max(), options.allows = nullptr;
  options.settings.clear();
  for (const auto& [name, value] : layouts.settings) options.settings.emplace_back(name, std::vector{value});
  size_t dim = 0;  // of the mesh, in its order
  const auto take = [&](bool has, std::string& name, std::vector<int64_t>& sizes) {
    sizes.clear();
    if (!has) return;
    name = layouts.mesh[dim].first, sizes = {layouts.mesh[dim].second};
    ++dim;
  };
  std::vector<int64_t> size;
  take(true, options.data_dim, size);
  take(!layouts.shard_dim.empty(), options.shard_dim, options.shard_sizes);
  const size_t left = layouts.mesh.size() - dim - (layouts.context_dim.empty() ? 1 : 2);
  take(left > 0, options.expert_dim, options.expert_sizes);
  take(!layouts.context_dim.empty(), options.context_dim, options.context_sizes);
  take(true, options.tensor_dim, size);
  options.experts = layouts.experts;
  options.ranks = layouts.stages / layouts.stages_per_rank;
  for (const auto& [name, ranks] : layouts.mesh) options.ranks *= ranks;
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
  predicted.step = trial.layouts.step, predicted.memory = trial.layouts.memory;
  return predicted;
}

ModuleTimelines predict_module_timelines(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options) {
  constexpr const char* kFunction = "predict_module_timelines";
  const SearchModuleLayoutsOptions of_layouts = options_of(kFunction, make, layouts, options);
  const ModelArrangement arrangement = arrangement_of(kFunction, layouts, of_layouts, inputs);
  const TriedModel tried{make, inputs, of_layouts, layouts.settings};
  ModuleTimelines timelines;
  const std::string failure = error_of([&] {
    const MeshScope on_mesh(arrangement.mesh);
    TrialStep step(tried, arrangement, layouts, arrangement.layers_of_rank(of_layouts.layers));
    timelines.micro_batch = step.predict_timeline();
  });
  TORCH_CHECK_VALUE(failure.empty(), "[", kFunction, "] a step in the layouts ", layouts.name(), " fails: ", failure);
  if (arrangement.schedule) {
    const StageTransfer transfer = stage_transfer(of_layouts, arrangement, layouts);
    timelines.pipeline = simulate_stages(*arrangement.schedule, timelines.micro_batch, transfer);
  }
  return timelines;
}

}  // namespace dtensor
