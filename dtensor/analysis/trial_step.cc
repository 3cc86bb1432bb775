#include "dtensor/analysis/trial_step.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/context_parallel.h"
#include "dtensor/factories.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/predict_step.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"

namespace dtensor::internal {
namespace {

// parameters() lists a module at two paths twice.
std::vector<at::Tensor> different_parameters(const torch::nn::Module& model) {
  std::vector<at::Tensor> result;
  std::set<const c10::TensorImpl*> seen;
  for (const at::Tensor& p : model.parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second) result.push_back(p);
  }
  return result;
}

bool is_backward(const StepSpan& span) { return span.backward; }

// Its forward and its backward; without one, all of it.
void add_phases(PhasedStep& to, const std::vector<StepSpan>& spans) {
  const auto backward = absl::c_find_if(spans, is_backward);
  to.phases.emplace_back(spans.begin(), backward);
  to.phases.emplace_back(backward, spans.end());
}

int64_t gathered_at_peak(const std::vector<std::vector<StepSpan>>& phases) {
  const StepSpan* at = nullptr;
  for (const auto& phase : phases) {
    for (const StepSpan& span : phase) {
      if (at == nullptr || span.peak_bytes > at->peak_bytes) at = &span;
    }
  }
  return at == nullptr ? 0 : at->gathered_bytes;
}

// Activations of stages that a rank holds besides those of one micro-batch, which has those of all its stages, while
// `at_most` micro-batches are left.
int64_t others_in_flight(const PipelineSchedule& schedule, int64_t at_most) {
  const int64_t per_rank = schedule.num_stages / schedule.num_ranks;
  int64_t most = 0;
  for (int64_t rank = 0; rank < schedule.num_ranks; ++rank) most = std::max(most, schedule.peak_in_flight(rank));
  return std::max<int64_t>(std::min(most, at_most * per_rank) - per_rank, 0);
}

}  // namespace

double forward_seconds_of(const StepTimeline& micro_batch) {
  double seconds = 0;
  for (const StepSpan& span : micro_batch.spans) {
    if (is_backward(span)) break;
    if (!span.beside) seconds = span.end;
  }
  return seconds;
}

double product_seconds_of(const TriedModel& tried, int64_t layers) {
  const std::map<int64_t, double>& of = tried.product_seconds;
  return std::max(layers > 3 ? seconds_of_layers(of.at(2), of.at(3), layers) : of.at(layers), 0.);
}

ModelWithLoss make_model(const TriedModel& tried, int64_t layers) {
  ModelWithLoss made = tried.make({layers, tried.settings});
  TORCH_CHECK_VALUE(made.model != nullptr, "[MakeModel] the function returned no model");
  TORCH_CHECK_VALUE(made.loss, "[MakeModel] the function returned an empty function for the loss");
  return made;
}

TrialStep::TrialStep(const TriedModel& tried, const ModelArrangement& arrangement, const ModuleLayouts& layouts,
                     int64_t layers)
    : made_(make_model(tried, layers)), arrangement_(arrangement) {
  const DeviceMesh& mesh = arrangement.mesh;
  const SearchModuleLayoutsOptions& o = tried.options;
  if (context_size(o, mesh) > 1) loss_of_sequences(o);
  // Of another trial in this world.
  set_gradient_buckets(mesh.world(), {});
  gathered_of(mesh)->evict_if([](const auto&) { return true; });
  apply_layouts(*made_.model, mesh, layouts);
  for (const at::Tensor& t : tried.inputs) {
    std::vector<int64_t> sizes = t.sizes().vec();
    if (!sizes.empty()) sizes[0] /= arrangement.micro_batches;
    const Placement rows = sizes.empty() ? Replicate() : Shard(0);
    Placements layout(mesh.ndim(), rows);
    layout.back() = Replicate();
    if (!o.context_sizes.empty()) layout[mesh.ndim() - 2] = sizes.size() > 1 ? Shard(1) : Replicate();
    inputs_.push_back(zeros(sizes, mesh, layout, {.dtype = t.scalar_type()}));
  }
  if (o.optimizer) optimizer_ = o.optimizer(made_.model->parameters());
}

void TrialStep::loss_of_sequences(const SearchModuleLayoutsOptions& o) {
  made_.loss = [loss = std::move(made_.loss), dim = o.context_dim, options = o.context_options](const auto& inputs) {
    const ContextParallel scope(dim, options);
    return loss(inputs);
  };
}

void TrialStep::run_micro_batch() {
  std::optional<DelayGradientReduction> delay;
  if (arrangement_.schedule) delay.emplace();
  made_.loss(inputs_).backward();
}

void TrialStep::run() {
  run_micro_batch();
  if (arrangement_.schedule) reduce_gradients(made_.model->parameters());
  if (optimizer_) step_optimizer();
  made_.model->zero_grad();
}

int64_t TrialStep::step_optimizer() {
  const MemoryMeter& meter = arrangement_.mesh.world().memory();
  const int64_t before = meter.live_bytes();
  optimizer_->step();
  state_bytes_ += meter.live_bytes() - before;
  return meter.live_bytes() - before;
}

int64_t TrialStep::activation_bytes() const {
  const World& world = arrangement_.mesh.world();
  return world.memory().live_bytes() - gathered_bytes(world);
}

StepTimeline TrialStep::micro_batch_timeline(int64_t at_most) {
  std::optional<DelayGradientReduction> delay;
  if (arrangement_.schedule) delay.emplace();
  const int64_t before = activation_bytes();
  int64_t held = 0;
  const auto run = [&] {
    const at::Tensor loss = made_.loss(inputs_);
    if (arrangement_.schedule) held = activation_bytes() - before;
    loss.backward();
  };
  StepTimeline timeline = dtensor::predict_timeline(run, arrangement_.mesh.world());
  if (!arrangement_.schedule) return timeline;
  const int64_t others = held * others_in_flight(*arrangement_.schedule, at_most) / arrangement_.stages_per_rank();
  for (StepSpan& span : timeline.spans) span.peak_bytes += others;
  timeline.step.peak_bytes += others;
  return timeline;
}

StepTimeline TrialStep::predict_timeline() {
  run();
  if (arrangement_.micro_batches == 1) return micro_batch_timeline(1);
  run_micro_batch();
  return micro_batch_timeline(arrangement_.micro_batches - 1);
}

StepPrediction TrialStep::predict_micro_batch(PhasedStep& to, int64_t at_most) {
  StepTimeline timeline = micro_batch_timeline(at_most);
  add_phases(to, timeline.spans);
  to.forward_seconds = forward_seconds_of(timeline);
  to.backward_seconds = timeline.step.seconds() - to.forward_seconds;
  return std::move(timeline.step);
}

StepPrediction TrialStep::predict_micro_batches(PhasedStep& to) {
  const int64_t count = arrangement_.micro_batches;
  const StepPrediction first = predict_micro_batch(to, count);
  const StepPrediction next = count > 1 ? predict_micro_batch(to, count - 1) : first;
  StepPrediction step;
  add_step(step, arrangement_.schedule ? next : first, 1);
  add_step(step, next, static_cast<double>(count - 1));
  step.live_bytes = first.live_bytes;
  step.peak_bytes = std::max(first.peak_bytes, next.peak_bytes);
  return step;
}

void TrialStep::add_optimizer(PhasedStep& to) {
  const World& world = arrangement_.mesh.world();
  const int64_t states = step_optimizer();
  for (auto& phase : to.phases) {
    for (StepSpan& span : phase) span.peak_bytes += states;
  }
  const StepTimeline update = dtensor::predict_timeline([&] { optimizer_->step(); }, world);
  add_phases(to, update.spans);
  add_step(to.step, update.step, 1);
  to.step.live_bytes += states;
  to.step.peak_bytes = std::max(to.step.peak_bytes + states, update.step.peak_bytes);
}

PhasedStep TrialStep::predict() {
  PhasedStep result;
  result.step = predict_micro_batches(result);
  for (const at::Tensor& p : different_parameters(*made_.model)) {
    result.memory.parameters += spec_of(p)->max_local_bytes();
    if (is_dtensor(p.grad())) result.memory.gradients += spec_of(p.grad())->max_local_bytes();
  }
  if (arrangement_.schedule) {
    const std::vector<at::Tensor> parameters = made_.model->parameters();
    const auto reduce = [&] {
      reduce_gradients(parameters);
      // predict_timeline() wants an operator; it takes no time, or that of a "view" among measured operators.
      parameters.front().alias();
    };
    const StepTimeline reduction = dtensor::predict_timeline(reduce, arrangement_.mesh.world());
    add_phases(result, reduction.spans);
    add_step(result.step, reduction.step, 1);
    result.step.peak_bytes = std::max(result.step.peak_bytes, reduction.step.peak_bytes);
  }
  if (optimizer_) add_optimizer(result);
  result.memory.optimizer_states = state_bytes_;
  result.memory.gathered = gathered_at_peak(result.phases);
  return result;
}

int64_t TrialStep::least_bytes(const std::vector<bool>& has_gradient) const {
  int64_t bytes = arrangement_.mesh.world().memory().live_bytes();
  const std::vector<at::Tensor> parameters = made_.model->parameters();
  std::set<const c10::TensorImpl*> counted;
  for (size_t i = 0; i < parameters.size() && i < has_gradient.size(); ++i) {
    if (has_gradient[i] && counted.insert(parameters[i].unsafeGetTensorImpl()).second)
      bytes += spec_of(parameters[i])->max_local_bytes();
  }
  return bytes;
}

}  // namespace dtensor::internal
