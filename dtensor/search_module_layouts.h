// Finds the layouts of a model that is written without them: tries parallel styles for its modules, fully_shard() for
// its layers and sizes of the mesh on imaginary ranks, and keeps what predict_step() says is fastest.
//
//   const auto make = [&](const ModelChoice&) -> ModelWithLoss {
//     auto model = std::make_shared<LlamaImpl>(config);
//     return {model, [=](const auto& in) { return cross_entropy(model->forward(in[0]), in[1]); }};
//   };
//   const auto found = search_module_layouts(make, {ids, targets}, {.ranks = 64, .max_bytes = 80ll << 30});
//   std::cout << found.explain();
//   found.best.styles.save("plan.json");                 // for parallelize_module(); or on the cluster, for `mesh`:
//   apply_layouts(*model, mesh, found.best);
//
// Modules at the same place of repeated layers are one class and get one style, so that there are as many choices for
// 80 layers as for 2; options.layers makes each as fast to try, too. Layers are repeated if they have the same type,
// the same parameters (names, shapes, dtypes) and such submodules, and two or more modules in them have parameters;
// their names do not matter.
//
// Linear layers, convolutions and tables are replicated, ColwiseParallel or RowwiseParallel; other modules with
// parameters are replicated or SequenceParallel. Activations between them are whole or sharded by dim 1, everywhere
// alike. All repeated layers and the rest are groups of fully_shard(), or none is. Every choice is improved in one
// class until that does not help, from at most six first choices for each mesh, and the best of all in two classes that
// are near each other: not proven best, and the same at every call.
//
// With options.stages, pipelines are tried, too: the step of one pipeline rank, with the bubble of the schedule. That
// rank has the layers of the slowest stage and all that is outside the repeated layers, so that the time is an upper
// estimate, and not less than what the pipeline needs where tables and head are on one of the stages. Gradients are
// reduced once a step. Then the mesh, schedule and micro-batches with the smallest lower bound of the time come first,
// and those whose bound is above the best time so far are left out, unless that does not fit on all layers. Once a
// choice with a tensor dim larger than 1 fits, in a pipeline or without, the others of its kind start with the best
// such styles and are improved in one class.
//
// With options.expert_sizes, meshes have a dim for experts, too, which the model gives to moe_dispatch(), and with
// options.context_sizes one for sequences, and with options.shard_sizes one that groups are sharded over. Then, too,
// the other choices start with the best styles; without pipelines they come in the order of the meshes, settings and
// micro-batches, so that the settings that are likely the best should be first in their lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/apply_layouts.h"
#include "dtensor/parallel_style.h"
#include "dtensor/search_module_layouts_options.h"

namespace dtensor {

// What the style of one class is good for.
struct StyleGain {
  std::vector<std::string> patterns;   // of the modules of the class
  std::optional<ParallelStyle> style;  // nullopt: replicated
  double seconds = 0;                  // that a step takes longer if the class alone is replicated
  std::string reason;                  // the terms that make up most of it; or why it would not run, or not fit
};

struct ModuleLayoutSearch {
  ModuleLayouts best;
  // At most three, the fastest others that fit and are predicted otherwise; with options.layers, from 2 and 3 layers.
  std::vector<ModuleLayouts> alternatives;
  std::vector<StyleGain> gains;  // of all classes, in the order of the model
  int64_t steps = 0;             // that were run
  bool complete = false;         // no mesh had more choices to try than max_steps allowed

  // The best, a line for each class with what its style saves, and what the alternatives take more time for.
  std::string explain() const;
};

// `inputs`: of the whole batch; only their shapes and dtypes count, so they may be on the device "meta". A choice whose
// step throws is passed over, and one whose parameters and gradients alone exceed max_bytes is not run, with `layers`
// at most on 2 layers. Errors (ValueError): an empty function; no model, or one without parameters; ranks < 1; `allows`
// allows no mesh, or none whose data dim is at most a micro-batch; max_steps < 1; a setting twice, with the name of a
// mesh dim, or without values; no number of micro-batches, one below 1, or one that does not divide dim 0 of an input;
// layers < 0, or a model of fewer layers that has other classes of modules; stages that the options or the
// ranks do not allow; no choice that was tried fits max_bytes
// (the text says what the nearest needs) or runs; what making a model, or a step on one rank, throws. Runs on the
// calling thread.
ModuleLayoutSearch search_module_layouts(const MakeModel& make, const std::vector<at::Tensor>& inputs,
                                         const SearchModuleLayoutsOptions& options);

}  // namespace dtensor
