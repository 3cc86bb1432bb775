// Runs a model with layouts of its classes of modules in one arrangement, and predicts its step: what
// search_module_layouts() tries.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/trial_step.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/parallel/module_classes.h"

namespace dtensor::internal {

enum class ClassStyle { kReplicated, kFirst, kSecond };
constexpr ClassStyle kClassStyles[] = {ClassStyle::kReplicated, ClassStyle::kFirst, ClassStyle::kSecond};

// Layouts of a whole model on one mesh.
struct ClassStyles {
  bool groups = false;              // of fully_shard()
  bool sequence = false;            // activations between modules are sharded by dim 1, not whole
  std::vector<ClassStyle> classes;  // in the order of ModuleClasses::classes
};

// Of modules with features: ColwiseParallel, or RowwiseParallel whose result is an activation between modules. Of
// others: SequenceParallel, which computes on an activation between modules, and gives it whole, or as it is.
// nullopt: replicated.
std::optional<ParallelStyle> style_of_class(const ModuleClass& c, ClassStyle style, bool sequence);

// Runs forward and backward on one rank; sets classes, has_gradient and product_seconds. Errors: see
// search_module_layouts().
void run_on_one_rank(TriedModel& tried);

using TriedModels = std::map<NamedNumbers, TriedModel>;  // by settings
// That of model.settings in `models`: `model` after run_on_one_rank(), if there is none yet. Valid as long as `models`.
const TriedModel& tried_model(TriedModels& models, TriedModel model);

// What is predicted of a choice.
struct PredictedChoice {
  StepPrediction step;
  LayoutMemory memory;
};

struct LayoutTrial {
  ClassStyles styles;  // all replicated where the tensor dim has one rank
  ModuleLayouts layouts;
  bool ran = false;       // false: it failed, or was not run, and layouts.step has only a lower bound of its memory
  bool is_whole = false;  // layouts.step is that of all layers: after run_whole()
  bool fits = false;      // ran, within max_bytes
  std::string failure;    // the error of its step; "": none

  std::string memory_text() const;  // "3.00 GiB", "at least 3.00 GiB"
};

// Those that fit first, fastest first; then those that ran and need more memory, least first; then those that were not
// run, the one with the smallest lower bound first; then those that failed.
bool is_better(const LayoutTrial& a, const LayoutTrial& b);

class LayoutTrials {
 public:
  // `tried`, of the same settings, outlives this.
  LayoutTrials(const TriedModel& tried, ModelArrangement arrangement)
      : tried_(tried), arrangement_(std::move(arrangement)) {}

  // Runs each choice once, however often it is asked for, and one whose parameters and gradients alone exceed max_bytes
  // not at all: it does not fit, and its peak is what these take.
  const LayoutTrial& run(const ClassStyles& styles);
  // Likewise, for layouts of any kind; what they have of the arrangement becomes that of the trials, and what was
  // predicted of them before does not count. `styles`: LayoutTrial::styles.
  const LayoutTrial& run(ModuleLayouts layouts, const ClassStyles& styles = {});
  // One of done(): its step becomes the second one on all layers of the model, or of a pipeline rank, with `fits` and
  // `failure` as they are there.
  void run_whole(const LayoutTrial& trial);
  // The result of run(), if it has that already; else null.
  const LayoutTrial* find(const ClassStyles& styles) const;

  const std::map<std::string, LayoutTrial>& done() const { return done_; }  // by what apply_layouts() would do
  int64_t steps() const { return steps_; }                                  // that were run

 private:
  ModuleLayouts layouts_of(const ClassStyles& styles) const;
  // nullopt: not run, as parameters and gradients alone take `least_bytes`, more than max_bytes.
  std::optional<PredictedChoice> run_step(const ModuleLayouts& layouts, int64_t& least_bytes);
  // The step of a rank with what it waits for in a pipeline.
  PredictedChoice finished(PhasedStep step, const ModuleLayouts& layouts) const;

  const TriedModel& tried_;
  const ModelArrangement arrangement_;
  std::map<std::string, LayoutTrial> done_;
  int64_t steps_ = 0;
};

}  // namespace dtensor::internal
