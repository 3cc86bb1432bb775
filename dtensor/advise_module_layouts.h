// Compares the layouts that a model has with the best that a search finds, and says which single change of them gains
// most.
//
//   const ModuleLayouts now{{{"dp", 16}, {"tp", 4}}, ParallelPlan::load("plan.json"), {"layers.*", ""}};
//   std::cout << advise_module_layouts(make, {ids, targets}, now, {.ranks = 64, .max_bytes = 80ll << 30}).explain();
//
// A change is another style for one class of modules (those at one place of repeated layers), fully_shard() for the
// repeated layers and the rest or for none, another mesh with its stages and their schedule, another value of a
// setting, or another number of micro-batches. The best of search_module_layouts() may differ in several of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/search_module_layouts_options.h"

namespace dtensor {

struct AdvisedChange {
  std::string what;       // "layers.*.w1: ColwiseParallel instead of replicated"
  ModuleLayouts layouts;  // with the change
  bool fits = false;      // within max_bytes
  double seconds = 0;     // that a step takes less; 0 where the layouts do not fit now
  std::string reason;     // the terms that make up most of it; where the layouts do not fit now, the memory
};

struct LayoutAdvice {
  ModuleLayouts now;  // as given, with its predicted step and memory
  bool ran = false;   // false: parameters and gradients alone exceed max_bytes, and now.step has only their bytes
  bool fits = false;  // ran, within max_bytes
  // Each makes a step faster or, where it does not fit, makes it need less memory; the best first, at most three.
  std::vector<AdvisedChange> changes;
  ModuleLayouts best;  // the fastest of what the search found, the changes that fit, and `now`

  // The share of the time that the best saves, the changes with what they save, and the best layouts.
  std::string explain() const;
};

// `now`: the sizes of the mesh, data dim first, whose product times the pipeline ranks is options.ranks, and which
// options.allows need not allow; a value for each of options.settings, and the number of micro-batches; of a pipeline
// its stages and schedule. The search has now.overlap, whatever options.overlap is. The options should try these
// values, too: else changes of the mesh alone are not found. With options.layers, `now` and the changes are predicted
// from models of 2 and 3 layers, in which all patterns must match; only the best of the search runs on all layers.
//
// Errors (ValueError): those of search_module_layouts(); other mesh dims, sizes or settings; a number of micro-batches
// that does not divide the batch; a pattern that matches no module; with options.layers, modules at one place of
// repeated layers that have different styles; stages that the layers or ranks do not allow, or a schedule without
// stages; a step that throws in these layouts, with what it threw.
LayoutAdvice advise_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                   const ModuleLayouts& now, const SearchModuleLayoutsOptions& options);

}  // namespace dtensor
