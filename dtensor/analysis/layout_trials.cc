#include "dtensor/analysis/layout_trials.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/analysis/pipeline_step.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/parallel/path_patterns.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor::internal {
namespace {

// What trials of `layers` layers are run on: models of 2 and 3 layers, if they are more.
std::vector<int64_t> layers_of_trials(int64_t layers) {
  return layers > 3 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{layers};
}

// Of all trials, those of pipelines included, whose ranks may have fewer layers.
std::set<int64_t> layers_of_all_trials(const SearchModuleLayoutsOptions& options) {
  const std::vector<int64_t> whole = layers_of_trials(options.layers);
  std::set<int64_t> all(whole.begin(), whole.end());
  for (int64_t few = 1; options.between_layers.defined() && few <= std::min<int64_t>(options.layers, 3); ++few)
    all.insert(few);
  return all;
}

// Error (ValueError): a model of fewer layers has not the classes of modules of the whole.
void check_classes(const ModuleClasses& whole, const ModuleClasses& fewer, int64_t layers) {
  bool alike = whole.classes.size() == fewer.classes.size() && whole.groups == fewer.groups;
  for (size_t c = 0; alike && c < whole.classes.size(); ++c)
    alike = whole.classes[c].patterns == fewer.classes[c].patterns;
  const auto text = [](const ModuleClasses& classes) {
    return absl::StrJoin(classes.classes, "; ", [](std::string* out, const ModuleClass& c) {
      absl::StrAppend(out, patterns_text(c.patterns));
    });
  };
  TORCH_CHECK_VALUE(alike, "[MakeModel] the model of ", layers, " layers has other classes of modules than the whole, ",
                    text(fewer), " instead of ", text(whole),
                    ": leave `layers` unset, so that all choices are tried on the whole");
}

// Error (ValueError): the patterns of experts match some modules of the class.
bool is_of_experts(const ModuleClass& c, const SearchModuleLayoutsOptions& o) {
  const auto matches = [&](const std::string& path) {
    return absl::c_any_of(o.experts, [&](const auto& pattern) { return pattern_matches(pattern, path); });
  };
  const bool first = matches(c.paths.front());
  const auto other = absl::c_find_if(c.paths, [&](const auto& path) { return matches(path) != first; });
  TORCH_CHECK_VALUE(other == c.paths.end(), "[SearchModuleLayoutsOptions] experts match '",
                    first ? c.paths.front() : *other, "' and not '", first ? *other : c.paths.front(),
                    "', which is at the same place of repeated layers: give patterns for both or for none");
  return first;
}

// Without those of experts, which have no style.
ModuleClasses classes_with_styles(torch::nn::Module& model, const SearchModuleLayoutsOptions& o) {
  ModuleClasses classes = module_classes(model);
  std::erase_if(classes.classes, [&](const ModuleClass& c) { return is_of_experts(c, o); });
  return classes;
}

auto order_of(const LayoutTrial& t) {
  const int rank = t.fits ? 0 : t.ran ? 1 : t.failure.empty() ? 2 : 3;
  return std::tuple(rank, t.fits ? t.layouts.step.seconds() : 0., rank < 3 ? t.layouts.step.peak_bytes : 0);
}

std::string key_of(const ModuleLayouts& layouts) {
  return absl::StrCat(layouts.groups.size(), " ", absl::StrJoin(layouts.groups, " "), "\n",
                      absl::StrJoin(layouts.experts, " "), layouts.overlap ? "\noverlap\n" : "\n",
                      layouts.styles.to_string());
}

}  // namespace

std::optional<ParallelStyle> style_of_class(const ModuleClass& c, ClassStyle style, bool sequence) {
  if (style == ClassStyle::kReplicated) return std::nullopt;
  const bool first = style == ClassStyle::kFirst;
  const Placement between = sequence ? Shard(1) : Replicate();
  if (c.has_features) return first ? ColwiseParallel() : RowwiseParallel({.output = between});
  return SequenceParallel({.input = between, .output = first ? Replicate() : between});
}

void run_on_one_rank(TriedModel& tried) {
  const SearchModuleLayoutsOptions& o = tried.options;
  const ModelArrangement one{make_one_rank_mesh(o)};
  const MeshScope on_mesh(one.mesh);
  ModuleLayouts none;
  none.mesh = mesh_sizes(one.mesh), none.experts = o.experts, none.context_dim = context_dim_of(o);
  none.shard_dim = shard_dim_of(o);
  const ModelWithLoss whole = make_model(tried, o.layers);
  tried.classes = classes_with_styles(*whole.model, o);
  TORCH_CHECK_VALUE(!whole.model->parameters().empty(), "[MakeModel] the model, a ", whole.model->name(),
                    ", has no parameters, so that there are no layouts to choose");
  const auto run = [&](int64_t layers) {
    TrialStep step(tried, one, none, layers);
    if (layers != 1) check_classes(tried.classes, classes_with_styles(step.model(), o), layers);
    const StepPrediction of = predict_step([&] { step.run_micro_batch(); }, one.mesh.world());
    tried.product_seconds[layers] = of.product_seconds - of.start_seconds;
    for (const at::Tensor& p : step.model().parameters()) tried.has_gradient[layers].push_back(p.grad().defined());
  };
  for (const int64_t layers : layers_of_all_trials(o)) {
    try {
      run(layers);
    } catch (c10::Error& e) {
      if (layers != o.layers) e.add_context(absl::StrCat("in the model that make() makes for `layers` of ", layers));
      throw;
    }
  }
}

const TriedModel& tried_model(TriedModels& models, TriedModel model) {
  const NamedNumbers settings = model.settings;
  const auto known = models.find(settings);
  if (known != models.end()) return known->second;
  run_on_one_rank(model);
  return models.emplace(settings, std::move(model)).first->second;
}

std::string LayoutTrial::memory_text() const {
  return absl::StrCat(ran ? "" : "at least ", bytes_text(layouts.step.peak_bytes));
}

bool is_better(const LayoutTrial& a, const LayoutTrial& b) { return order_of(a) < order_of(b); }

ModuleLayouts LayoutTrials::layouts_of(const ClassStyles& styles) const {
  const SearchModuleLayoutsOptions& o = tried_.options;
  ModuleLayouts layouts;
  layouts.experts = o.experts, layouts.context_dim = context_dim_of(o), layouts.overlap = o.overlap;
  layouts.shard_dim = shard_dim_of(o);
  if (styles.groups && arrangement_.mesh.size(dim_of_groups(o)) > 1) layouts.groups = tried_.classes.groups;
  if (arrangement_.mesh.size(o.tensor_dim) == 1) return layouts;  // all styles are alike
  for (size_t c = 0; c < styles.classes.size(); ++c) {
    const ModuleClass& of = tried_.classes.classes[c];
    const auto style = style_of_class(of, styles.classes[c], styles.sequence);
    if (!style) continue;
    for (const std::string& pattern : of.patterns) layouts.styles.entries.push_back({pattern, *style});
  }
  return layouts;
}

const LayoutTrial* LayoutTrials::find(const ClassStyles& styles) const {
  const auto found = done_.find(key_of(layouts_of(styles)));
  return found == done_.end() ? nullptr : &found->second;
}

const LayoutTrial& LayoutTrials::run(const ClassStyles& styles) {
  ClassStyles applied = styles;
  if (arrangement_.mesh.size(tried_.options.tensor_dim) == 1)
    applied = {styles.groups, false, std::vector<ClassStyle>(styles.classes.size(), ClassStyle::kReplicated)};
  return run(layouts_of(applied), applied);
}

const LayoutTrial& LayoutTrials::run(ModuleLayouts layouts, const ClassStyles& styles) {
  layouts.mesh = mesh_sizes(arrangement_.mesh);
  layouts.settings = arrangement_.settings;
  layouts.micro_batches = arrangement_.micro_batches;
  layouts.stages = arrangement_.stages();
  layouts.stages_per_rank = arrangement_.stages_per_rank();
  layouts.schedule = arrangement_.schedule ? arrangement_.schedule->name : "";
  const auto [it, added] = done_.try_emplace(key_of(layouts));
  if (!added) return it->second;
  it->second.styles = styles;
  it->second.layouts = std::move(layouts);
  it->second.layouts.step = {}, it->second.layouts.memory = {};
  LayoutTrial& trial = it->second;
  trial.failure = error_of([&] {
    const auto predicted = run_step(trial.layouts, trial.layouts.step.peak_bytes);
    if (!predicted) return;
    trial.layouts.step = predicted->step;
    trial.layouts.memory = predicted->memory;
    trial.ran = true;
    trial.fits = predicted->step.peak_bytes <= tried_.options.max_bytes;
  });
  return trial;
}

void LayoutTrials::run_whole(const LayoutTrial& of) {
  LayoutTrial& trial = done_.at(key_of(of.layouts));
  if (trial.is_whole) return;
  trial.fits = false;
  trial.failure = error_of([&] {
    const MeshScope on_mesh(arrangement_.mesh);
    TrialStep step(tried_, arrangement_, trial.layouts, arrangement_.layers_of_rank(tried_.options.layers));
    ++steps_;
    step.run();
    PredictedChoice predicted = finished(step.predict(), trial.layouts);
    trial.fits = predicted.step.peak_bytes <= tried_.options.max_bytes;
    trial.layouts.step = std::move(predicted.step), trial.layouts.memory = predicted.memory;
    trial.is_whole = true;
  });
  trial.ran = trial.failure.empty();
}

std::optional<PredictedChoice> LayoutTrials::run_step(const ModuleLayouts& layouts, int64_t& least_bytes) {
  const int64_t all = arrangement_.layers_of_rank(tried_.options.layers);
  const MeshScope on_mesh(arrangement_.mesh);
  std::vector<int64_t> least;
  std::vector<PhasedStep> steps;
  for (const int64_t n : layers_of_trials(all)) {
    TrialStep step(tried_, arrangement_, layouts, n);
    least.push_back(step.least_bytes(tried_.has_gradient.at(n)));
    least_bytes = least.size() == 2 ? bytes_of_layers(least[0], least[1], all) : least[0];
    if (least_bytes > tried_.options.max_bytes) return std::nullopt;
    if (steps.empty()) ++steps_;
    steps.push_back(step.predict());
  }
  return finished(steps.size() == 2 ? step_of_layers(steps[0], steps[1], all) : std::move(steps[0]), layouts);
}

PredictedChoice LayoutTrials::finished(PhasedStep step, const ModuleLayouts& layouts) const {
  if (arrangement_.schedule)
    add_waiting(step, *arrangement_.schedule, stage_transfer(tried_.options, arrangement_, layouts));
  LayoutMemory& memory = step.memory;
  memory.activations =
      step.step.peak_bytes - memory.parameters - memory.gradients - memory.optimizer_states - memory.gathered;
  return {std::move(step.step), memory};
}

}  // namespace dtensor::internal
