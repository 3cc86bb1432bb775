#include "dtensor/analysis/layout_trials.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor::internal {
namespace {

ModelWithLoss make_model(const TriedModel& tried, int64_t layers) {
  ModelWithLoss made = tried.make({layers, tried.settings});
  TORCH_CHECK_VALUE(made.model != nullptr, "[search_module_layouts] make() returned no model");
  TORCH_CHECK_VALUE(made.loss, "[search_module_layouts] make() returned an empty function for the loss");
  return made;
}

// What trials are run on: models of 2 and 3 layers, if all have more.
std::vector<int64_t> layers_of_trials(const SearchModuleLayoutsOptions& options) {
  return options.layers > 3 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{options.layers};
}

// A training step of a new model in these layouts. Use it inside a MeshScope.
class TrialStep {
 public:
  TrialStep(const TriedModel& tried, const ModelArrangement& arrangement, const ModuleLayouts& layouts, int64_t layers)
      : made_(make_model(tried, layers)), arrangement_(arrangement) {
    const DeviceMesh& mesh = arrangement.mesh;
    apply_layouts(*made_.model, mesh, layouts);
    for (const at::Tensor& t : tried.inputs) {
      std::vector<int64_t> sizes = t.sizes().vec();
      if (!sizes.empty()) sizes[0] /= arrangement.micro_batches;
      const Placement rows = sizes.empty() ? Replicate() : Shard(0);
      inputs_.push_back(zeros(sizes, mesh, {rows, Replicate()}, {.dtype = t.scalar_type()}));
    }
    if (tried.options.optimizer) optimizer_ = tried.options.optimizer(made_.model->parameters());
  }

  void run_micro_batch() { made_.loss(inputs_).backward(); }

  // The first step: it gathers no groups ahead, and makes the states of the optimizer.
  void run() {
    run_micro_batch();
    if (optimizer_) optimizer_->step();
    made_.model->zero_grad();
  }

  // Of all micro-batches and the optimizer. The gradients of the second micro-batch are added to those of the first, as
  // those of all further ones. If there was no step before, the states that the optimizer makes count from the
  // beginning.
  PhasedStep predict() {
    const World& world = arrangement_.mesh.world();
    PhasedStep result;
    StepPrediction& step = result.step;
    step = add_phases(result, predict_timeline([&] { run_micro_batch(); }, world));
    if (arrangement_.micro_batches > 1) {
      const StepPrediction next = add_phases(result, predict_timeline([&] { run_micro_batch(); }, world));
      add_step(step, next, static_cast<double>(arrangement_.micro_batches - 1));
      step.peak_bytes = std::max(step.peak_bytes, next.peak_bytes);
    }
    if (!optimizer_) return result;
    const int64_t before = world.memory().live_bytes();
    optimizer_->step();
    const int64_t states = world.memory().live_bytes() - before;
    for (auto& phase : result.phases) {
      for (StepSpan& span : phase) span.peak_bytes += states;
    }
    const StepPrediction update = add_phases(result, predict_timeline([&] { optimizer_->step(); }, world));
    add_step(step, update, 1);
    step.live_bytes += states;
    step.peak_bytes = std::max(step.peak_bytes + states, update.peak_bytes);
    return result;
  }

  // A lower bound of what a rank holds at the end of backward: what is there before, and the gradients, which have the
  // layouts of their parameters.
  int64_t least_bytes(const std::vector<bool>& has_gradient) const {
    int64_t bytes = arrangement_.mesh.world().memory().live_bytes();
    const std::vector<at::Tensor> parameters = made_.model->parameters();
    std::set<const c10::TensorImpl*> counted;  // parameters() lists a module at two paths twice
    for (size_t i = 0; i < parameters.size() && i < has_gradient.size(); ++i) {
      if (has_gradient[i] && counted.insert(parameters[i].unsafeGetTensorImpl()).second)
        bytes += spec_of(parameters[i])->max_local_bytes();
    }
    return bytes;
  }

  torch::nn::Module& model() { return *made_.model; }

 private:
  // Its forward and its backward; without one, all of it.
  static StepPrediction add_phases(PhasedStep& to, StepTimeline timeline) {
    const auto backward = absl::c_find_if(timeline.spans, [](const StepSpan& s) { return s.backward; });
    to.phases.emplace_back(timeline.spans.begin(), backward);
    to.phases.emplace_back(backward, timeline.spans.end());
    return std::move(timeline.step);
  }

  ModelWithLoss made_;
  const ModelArrangement& arrangement_;
  std::vector<at::Tensor> inputs_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

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
  TORCH_CHECK_VALUE(alike, "[search_module_layouts] the model of ", layers,
                    " layers has other classes of modules than the whole, ", text(fewer), " instead of ", text(whole),
                    ": leave `layers` unset, so that all choices are tried on the whole");
}

auto order_of(const LayoutTrial& t) {
  const int rank = t.fits ? 0 : t.ran ? 1 : t.failure.empty() ? 2 : 3;
  return std::tuple(rank, t.fits ? t.layouts.step.seconds() : 0., rank < 3 ? t.layouts.step.peak_bytes : 0);
}

std::string key_of(const ModuleLayouts& layouts) {
  return absl::StrCat(layouts.groups.size(), " ", absl::StrJoin(layouts.groups, " "), "\n", layouts.styles.to_string());
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
  const ModelArrangement one{make_search_mesh(o, 1, 1)};
  const MeshScope on_mesh(one.mesh);
  ModuleLayouts none;
  none.mesh = mesh_sizes(one.mesh);
  const ModelWithLoss whole = make_model(tried, o.layers);
  tried.classes = module_classes(*whole.model);
  TORCH_CHECK_VALUE(!tried.classes.classes.empty(), "[search_module_layouts] the model, a ", whole.model->name(),
                    ", has no parameters, so that there are no layouts to choose");
  for (const int64_t layers : layers_of_trials(o)) {
    TrialStep step(tried, one, none, layers);
    check_classes(tried.classes, module_classes(step.model()), layers);
    step.run_micro_batch();
    for (const at::Tensor& p : step.model().parameters()) tried.has_gradient[layers].push_back(p.grad().defined());
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
  if (styles.groups && arrangement_.mesh.size(o.data_dim) > 1) layouts.groups = tried_.classes.groups;
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

const LayoutTrial& LayoutTrials::run(const ClassStyles& styles) { return run(layouts_of(styles), styles); }

const LayoutTrial& LayoutTrials::run(ModuleLayouts layouts, const ClassStyles& styles) {
  layouts.mesh = mesh_sizes(arrangement_.mesh);
  layouts.settings = arrangement_.settings;
  layouts.micro_batches = arrangement_.micro_batches;
  const auto [it, added] = done_.try_emplace(key_of(layouts));
  if (!added) return it->second;
  it->second.styles = styles;
  it->second.layouts = std::move(layouts);
  LayoutTrial& trial = it->second;
  trial.failure = error_of([&] {
    const auto step = run_step(trial.layouts, trial.layouts.step.peak_bytes);
    if (!step) return;
    trial.layouts.step = *step;
    trial.ran = true;
    trial.fits = step->peak_bytes <= tried_.options.max_bytes;
  });
  return trial;
}

void LayoutTrials::run_whole(const LayoutTrial& of) {
  LayoutTrial& trial = done_.at(key_of(of.layouts));
  if (trial.whole) return;
  trial.fits = false;
  trial.failure = error_of([&] {
    const MeshScope on_mesh(arrangement_.mesh);
    TrialStep step(tried_, arrangement_, trial.layouts, tried_.options.layers);
    ++steps_;
    step.run();
    trial.whole = step.predict().step;
    trial.fits = trial.whole->peak_bytes <= tried_.options.max_bytes;
    if (!trial.fits) trial.layouts.step.peak_bytes = trial.whole->peak_bytes;
  });
  trial.ran = trial.failure.empty();
}

std::optional<StepPrediction> LayoutTrials::run_step(const ModuleLayouts& layouts, int64_t& least_bytes) {
  const int64_t all = tried_.options.layers;
  const MeshScope on_mesh(arrangement_.mesh);
  std::vector<int64_t> least;
  std::vector<PhasedStep> steps;
  for (const int64_t n : layers_of_trials(tried_.options)) {
    TrialStep step(tried_, arrangement_, layouts, n);
    least.push_back(step.least_bytes(tried_.has_gradient.at(n)));
    least_bytes = least.size() == 2 ? bytes_of_layers(least[0], least[1], all) : least[0];
    if (least_bytes > tried_.options.max_bytes) return std::nullopt;
    if (steps.empty()) ++steps_;
    steps.push_back(step.predict());
  }
  return steps.size() == 2 ? step_of_layers(steps[0], steps[1], all) : steps[0].step;
}

}  // namespace dtensor::internal
