// What a step of a model takes in given layouts, on imaginary ranks: one of the choices of search_module_layouts().
//
//   const ModuleLayouts now = ModuleLayouts::load("layouts.json");
//   std::cout << predict_module_layouts(make, inputs, now, {.layers = 32}).step.to_string();
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/pipeline_schedule.h"
#include "dtensor/search_module_layouts_options.h"
#include "dtensor/step_timeline.h"

namespace dtensor {

// The layouts with the predicted `step` and `memory`, which are those of all layers. Of the options those count that
// say what a step is: context_options, layers, between_layers, optimizer, cost_model, device_type. Errors (ValueError):
// an empty function; layouts that ModuleLayouts::save() refuses; inputs with fewer rows or columns than ranks that
// share them, or rows that micro-batches do not divide; a step in the layouts that throws.
ModuleLayouts predict_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                     const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options);

// The same step as pictures: to_svg() of both.
struct ModuleTimelines {
  // Forward and backward of one micro-batch, of several the second, on one rank, of the layers of its pipeline rank.
  // The optimizer is not in the picture, but for the memory of its states.
  StepTimeline micro_batch;
  std::optional<PipelineTimeline> pipeline;  // of all micro-batches and pipeline ranks; nullopt: no pipeline
};
// Errors: likewise.
ModuleTimelines predict_module_timelines(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const ModuleLayouts& layouts, const SearchModuleLayoutsOptions& options);

}  // namespace dtensor
