#include "dtensor/analysis/layout_trials.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/analysis/mesh_shapes.h"
#include "dtensor/analysis/step_difference.h"
#include "dtensor/factories.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "plan/plan_text.h"

namespace dtensor::internal {
namespace {

ModelWithLoss make_model(const TriedModel& tried) {
  ModelWithLoss made = tried.make();
  TORCH_CHECK_VALUE(made.model != nullptr, "[search_module_layouts] make() returned no model");
  TORCH_CHECK_VALUE(made.loss, "[search_module_layouts] make() returned an empty function for the loss");
  return made;
}

// A training step of a new model in these layouts. Use it inside a MeshScope.
class TrialStep {
 public:
  TrialStep(const TriedModel& tried, const DeviceMesh& mesh, const ModuleLayouts& layouts)
      : made_(make_model(tried)), mesh_(mesh) {
    apply_layouts(*made_.model, mesh, layouts);
    for (const at::Tensor& t : tried.inputs) {
      const Placement rows = t.dim() > 0 ? Shard(0) : Replicate();
      inputs_.push_back(zeros(t.sizes().vec(), mesh, {rows, Replicate()}, {.dtype = t.scalar_type()}));
    }
    if (tried.options.optimizer) optimizer_ = tried.options.optimizer(made_.model->parameters());
  }

  void run() {
    made_.model->zero_grad();
    made_.loss(inputs_).backward();
    if (optimizer_) optimizer_->step();
  }

  // A lower bound of what a rank holds at the end of backward: what is there before, and the gradients, which have the
  // layouts of their parameters.
  int64_t least_bytes(const std::vector<bool>& has_gradient) const {
    int64_t bytes = mesh_.world().memory().live_bytes();
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
  ModelWithLoss made_;
  const DeviceMesh mesh_;
  std::vector<at::Tensor> inputs_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

auto order_of(const LayoutTrial& t) {
  const int rank = t.fits ? 0 : t.ran ? 1 : t.failure.empty() ? 2 : 3;
  return std::tuple(rank, t.fits ? t.layouts.step.seconds() : 0., rank < 3 ? t.layouts.step.peak_bytes : 0);
}

std::string key_of(const ModuleLayouts& layouts) {
  return absl::StrCat(absl::StrJoin(layouts.groups, " "), "\n", layouts.styles.to_string());
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
  const DeviceMesh mesh(World::abstract(1, o.device_type), {1, 1}, {o.data_dim, o.tensor_dim});
  const MeshScope on_mesh(mesh);
  ModuleLayouts none;
  none.mesh = {{o.data_dim, 1}, {o.tensor_dim, 1}};
  TrialStep step(tried, mesh, none);
  tried.classes = module_classes(step.model());
  TORCH_CHECK_VALUE(!tried.classes.classes.empty(), "[search_module_layouts] the model, a ", step.model().name(),
                    ", has no parameters, so that there are no layouts to choose");
  step.run();
  for (const at::Tensor& p : step.model().parameters()) tried.has_gradient.push_back(p.grad().defined());
}

std::vector<DeviceMesh> allowed_meshes(const SearchModuleLayoutsOptions& o) {
  TORCH_CHECK_VALUE(o.ranks >= 1, "[search_module_layouts] ranks is ", o.ranks, "; it must be at least 1");
  TORCH_CHECK_VALUE(o.max_steps >= 1, "[search_module_layouts] max_steps is ", o.max_steps, "; it must be at least 1");
  std::vector<DeviceMesh> meshes;
  for (const std::vector<int64_t>& shape : mesh_shapes(o.ranks, 2)) {
    const DeviceMesh mesh(World::abstract(o.ranks, o.device_type), shape, {o.data_dim, o.tensor_dim});
    if (o.allows && !o.allows(mesh)) continue;
    if (o.cost_model) set_cost_model(mesh.world(), *o.cost_model);
    meshes.push_back(mesh);
  }
  TORCH_CHECK_VALUE(!meshes.empty(), "[search_module_layouts] `allows` allows no mesh of ", o.ranks, " ranks");
  return meshes;
}

std::string LayoutTrial::memory_text() const {
  return absl::StrCat(ran ? "" : "at least ", bytes_text(layouts.step.peak_bytes));
}

bool is_better(const LayoutTrial& a, const LayoutTrial& b) { return order_of(a) < order_of(b); }

NamedNumbers LayoutTrials::mesh_sizes() const {
  const SearchModuleLayoutsOptions& o = tried_.options;
  return {{o.data_dim, mesh_.size(o.data_dim)}, {o.tensor_dim, mesh_.size(o.tensor_dim)}};
}

ModuleLayouts LayoutTrials::layouts_of(const ClassStyles& styles) const {
  const SearchModuleLayoutsOptions& o = tried_.options;
  ModuleLayouts layouts;
  layouts.mesh = mesh_sizes();
  if (styles.groups && mesh_.size(o.data_dim) > 1) layouts.groups = tried_.classes.groups;
  if (mesh_.size(o.tensor_dim) == 1) return layouts;  // all styles are alike
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
  layouts.mesh = mesh_sizes();
  const auto [it, added] = done_.try_emplace(key_of(layouts));
  if (!added) return it->second;
  it->second.styles = styles;
  it->second.layouts = std::move(layouts);
  run_step(it->second);
  return it->second;
}

void LayoutTrials::run_step(LayoutTrial& trial) {
  const World& world = mesh_.world();
  StepPrediction& predicted = trial.layouts.step;
  trial.failure = error_of([&] {
    const MeshScope on_mesh(mesh_);
    TrialStep step(tried_, mesh_, trial.layouts);
    predicted.peak_bytes = step.least_bytes(tried_.has_gradient);
    if (predicted.peak_bytes > tried_.options.max_bytes) return;
    ++steps_;
    if (tried_.options.optimizer) step.run();  // makes its states
    predicted = predict_step([&] { step.run(); }, world);
    trial.ran = true;
    trial.fits = predicted.peak_bytes <= tried_.options.max_bytes;
  });
}

}  // namespace dtensor::internal
