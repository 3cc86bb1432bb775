// Compares the layouts that a model has with the best that a search finds, and says which single change of them gains
// most.
//
//   const ModuleLayouts now{{{"dp", 16}, {"tp", 4}}, ParallelPlan::load("plan.json"), {"layers.*", ""}};
//   std::cout << advise_module_layouts(make, {ids, targets}, now, {.ranks = 64, .max_bytes = 80ll << 30}).explain();
//
// A change is another style for one class of modules (those at one place of repeated layers), fully_shard() for the
// repeated layers and the rest or for none, other sizes of the mesh, another value of a setting, or another number of
// micro-batches. The best of search_module_layouts() may differ in several of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/search_module_layouts_options.h"

namespace dtensor {

struct AdvisedChange {
  std::string what;       // "layers.*.w1: ColwiseParallel() instead of replicated"
  ModuleLayouts layouts;  // with the change
  bool fits = false;      // within max_bytes
  double seconds = 0;     // that a step takes less; 0 where the layouts do not fit now
  std::string reason;     // the terms that make up most of it; where the layouts do not fit now, the memory
};

struct LayoutAdvice {
  ModuleLayouts now;  // as given, with its predicted step
  bool ran = false;   // false: parameters and gradients alone exceed max_bytes, and now.step has only their bytes
  bool fits = false;  // ran, within max_bytes
  // That make a step faster, or make it fit where it does not; the best first, at most three.
  std::vector<AdvisedChange> changes;
  ModuleLayouts best;  // the faster one of what the search found and of the first change; or `now`, if none is faster

  // The share of the time that the best saves, the changes with what they save, and the best layouts.
  std::string explain() const;
};

// `now`: with sizes of the mesh whose product is options.ranks, and a value for each setting. It need not be allowed by
// options.allows. Errors
// (ValueError): those of search_module_layouts(); names of mesh dims that are not those of the options, or sizes of
// another product; a pattern that matches no module; a step that throws in these layouts, with what it threw.
LayoutAdvice advise_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                   const ModuleLayouts& now, const SearchModuleLayoutsOptions& options);

}  // namespace dtensor
