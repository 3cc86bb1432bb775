// A training step of a model in layouts that a search tries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "dtensor/analysis/model_arrangements.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/apply_layouts.h"
#include "dtensor/parallel/module_classes.h"
#include "dtensor/search_module_layouts_options.h"
#include "dtensor/step_timeline.h"

namespace dtensor::internal {

// What is tried. The references outlive all uses.
struct TriedModel {
  const MakeModel& make;
  const std::vector<at::Tensor>& inputs;
  const SearchModuleLayoutsOptions& options;
  NamedNumbers settings = {};
  ModuleClasses classes = {};
  // By the number of layers that trials run: whether a step on one rank makes a gradient, in the order of parameters().
  std::map<int64_t, std::vector<bool>> has_gradient = {};
  // Likewise: of the products of a step on one rank, less the starts of all operators, so that it may be negative.
  std::map<int64_t, double> product_seconds = {};
};

// A lower bound of the products of a step of `layers` layers on one rank. REQUIRES: the number of a trial's layers.
double product_seconds_of(const TriedModel& tried, int64_t layers);

// Until the last operator before backward ends.
double forward_seconds_of(const StepTimeline& micro_batch);

// A new model. Errors (ValueError): no model, or no function for the loss.
ModelWithLoss make_model(const TriedModel& tried, int64_t layers);

// Use it inside a MeshScope. A step of a pipeline is that of one pipeline rank, which has `layers` layers, without what
// it waits for.
class TrialStep {
 public:
  // `arrangement` outlives this.
  TrialStep(const TriedModel& tried, const ModelArrangement& arrangement, const ModuleLayouts& layouts, int64_t layers);

  // Forward and backward. In a pipeline gradients are not reduced, as Pipeline::step() reduces them once.
  void run_micro_batch();
  // The first step: it gathers no groups ahead, and makes the states of the optimizer.
  void run();
  // Of all micro-batches and the optimizer. The gradients of the second micro-batch are added to those of the first, as
  // those of all further ones. If there was no step before, the states that the optimizer makes count from the
  // beginning. In a pipeline all micro-batches take the time of the second, and there are as many activations as
  // micro-batches are in flight at most.
  PhasedStep predict();
  // Forward and backward of one micro-batch among the states of the optimizer: of several the second, and in a pipeline
  // with the activations of all that are in flight.
  StepTimeline predict_timeline();
  // A lower bound of what a rank holds at the end of backward: what is there before, and the gradients, which have the
  // layouts of their parameters.
  int64_t least_bytes(const std::vector<bool>& has_gradient) const;

  torch::nn::Module& model() { return *made_.model; }

 private:
  // `at_most`: micro-batches of which the pipeline rank holds activations.
  StepTimeline micro_batch_timeline(int64_t at_most);
  StepPrediction predict_micro_batch(PhasedStep& to, int64_t at_most);
  StepPrediction predict_micro_batches(PhasedStep& to);
  void add_optimizer(PhasedStep& to);
  void loss_of_sequences(const SearchModuleLayoutsOptions& options);  // computes the loss in a ContextParallel scope
  int64_t step_optimizer();                                           // the bytes of the states that it makes
  int64_t activation_bytes() const;                                   // alive, and all else but gathered parameters

  ModelWithLoss made_;
  const ModelArrangement& arrangement_;
  std::vector<at::Tensor> inputs_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  int64_t state_bytes_ = 0;  // of the optimizer
};

}  // namespace dtensor::internal
