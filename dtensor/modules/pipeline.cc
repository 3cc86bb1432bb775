#include "dtensor/pipeline.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "dtensor/gradients/split_backward.h"
#include "dtensor/modules/module_layouts.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

using ActionKind = PipelineAction::Kind;

void check_on_stage(const at::Tensor& t, const DeviceMesh& mesh, const char* what, int64_t stage) {
  TORCH_CHECK_VALUE(is_dtensor(t), "[Pipeline] the ", what, " of stage ", stage, " is ",
                    t.defined() ? "a plain tensor" : "undefined", "; it must be distributed on ", mesh.to_string());
  TORCH_CHECK_VALUE(spec_of(t)->mesh() == mesh, "[Pipeline] the ", what, " of stage ", stage, " is on ",
                    spec_of(t)->mesh().to_string(), " of ranks ", c10::IntArrayRef(spec_of(t)->mesh().ranks()),
                    "; the stage is on ", mesh.to_string(), " of ranks ", c10::IntArrayRef(mesh.ranks()));
}

Placements same_on(const DeviceMesh& to, const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  TORCH_CHECK_VALUE(spec.mesh().ndim() == to.ndim(), "[Pipeline] an activation moves from ", spec.mesh().to_string(),
                    " to ", to.to_string(), ": give the stage input_placements, as the meshes have different dims");
  return without_partials(spec.placements());
}

// Ranks go on with the actions of other micro-batches, and wait for what arrives when they read it.
constexpr RedistributeOptions kTransfer{.async_op = true};

// The activation `t` of the stage before, on the mesh of `stage`.
at::Tensor moved_to(const PipelineStage& stage, const at::Tensor& t) {
  return redistribute(t, stage.mesh, stage.input_placements.empty() ? same_on(stage.mesh, t) : stage.input_placements,
                      kTransfer);
}

void check_on_mesh(const torch::nn::Module& module, const std::string& path, const DeviceMesh& mesh) {
  for (const auto& p : module.named_parameters()) {
    TORCH_CHECK_VALUE(!p.value().defined() || spec_of(p.value())->mesh() == mesh, "[pipeline_stages] '", path, ".",
                      p.key(), "' is ", spec_of(p.value())->to_string(), " of ranks ",
                      c10::IntArrayRef(spec_of(p.value())->mesh().ranks()), ", and its stage is on ranks ",
                      c10::IntArrayRef(mesh.ranks()), ". Two stages cannot share a weight: give each its own.");
  }
}

}  // namespace

// What is under way in one step, by stage and micro-batch, and the actions on it.
struct Pipeline::Step {
  struct Cell {
    at::Tensor input;     // a leaf, from the stage before
    at::Tensor root;      // the activation, or the loss of the last stage, with autograd history
    at::Tensor gradient;  // of `root`, from the stage after
    SplitBackward rest;   // after kBackwardInput, in place of `root`
  };
  using Loss = std::function<at::Tensor(const at::Tensor& output, int64_t micro_batch)>;

  Step(const Pipeline& p, const std::vector<at::Tensor>& in, const Loss& of_output)
      : pipeline(p), inputs(in), loss(of_output), losses(in.size()) {
    cells.resize(static_cast<size_t>(p.schedule_.num_stages * p.schedule_.num_micro_batches));
  }
  Cell& at(int64_t stage, int64_t m) {
    return cells[static_cast<size_t>(stage * pipeline.schedule_.num_micro_batches + m)];
  }

  void run(const PipelineAction& action);
  void forward(int64_t stage, int64_t m);
  void backward(int64_t stage, int64_t m);
  void backward_to_input(int64_t stage, int64_t m);
  void backward_to_parameters(int64_t stage, int64_t m);
  void send_back(int64_t stage, int64_t m, const at::Tensor& gradient);

  const Pipeline& pipeline;
  const std::vector<at::Tensor>& inputs;
  const Loss& loss;
  std::vector<at::Tensor> losses;
  std::vector<Cell> cells;
};

void Pipeline::Step::run(const PipelineAction& action) {
  switch (action.kind) {
    case ActionKind::kForward:
      return forward(action.stage, action.micro_batch);
    case ActionKind::kBackward:
      return backward(action.stage, action.micro_batch);
    case ActionKind::kBackwardInput:
      return backward_to_input(action.stage, action.micro_batch);
    case ActionKind::kBackwardWeight:
      return backward_to_parameters(action.stage, action.micro_batch);
  }
}

void Pipeline::Step::forward(int64_t stage, int64_t m) {
  const c10::AutoGradMode with_graph(true);
  Cell& cell = at(stage, m);
  const at::Tensor output = pipeline.run_stage(stage, stage == 0 ? inputs[m] : cell.input);
  if (stage + 1 == pipeline.schedule_.num_stages) {
    const DeviceMesh& mesh = pipeline.stages_[stage].mesh;
    const MeshScope scope(mesh);
    const at::Tensor value = loss(output, m);
    check_on_stage(value, mesh, "loss", stage);
    TORCH_CHECK_VALUE(value.numel() == 1, "[Pipeline] the loss of micro-batch ", m, " has the shape ", value.sizes(),
                      "; it must have one element");
    losses[m] = value.detach();
    cell.root = value.div(static_cast<double>(inputs.size()));
    return;
  }
  cell.root = output;
  const at::Tensor sent = moved_to(pipeline.stages_[stage + 1], output.detach());
  at(stage + 1, m).input = sent.detach().requires_grad_(output.requires_grad());
}

// The gradient of the input of `stage`, to the stage before.
void Pipeline::Step::send_back(int64_t stage, int64_t m, const at::Tensor& gradient) {
  TORCH_CHECK_VALUE(gradient.defined(), "[Pipeline] micro-batch ", m, ": what stage ", stage,
                    " gives has no gradient for the stage's input: it does not depend on it, or was detached");
  Cell& before = at(stage - 1, m);
  before.gradient = redistribute(gradient, pipeline.stages_[stage - 1].mesh,
                                 without_partials(spec_of(before.root)->placements()), kTransfer);
}

void Pipeline::Step::backward(int64_t stage, int64_t m) {
  Cell cell = std::exchange(at(stage, m), {});
  if (cell.root.requires_grad()) torch::autograd::backward({cell.root}, {cell.gradient});
  if (stage > 0 && cell.input.requires_grad()) send_back(stage, m, cell.input.grad());
}

void Pipeline::Step::backward_to_input(int64_t stage, int64_t m) {
  Cell& cell = at(stage, m);
  if (stage == 0 || !cell.input.requires_grad()) return;
  at::Tensor gradient;
  if (cell.root.requires_grad()) gradient = backward_input(cell.root, cell.gradient, cell.input, cell.rest);
  cell = {.input = {}, .root = {}, .gradient = {}, .rest = std::move(cell.rest)};
  send_back(stage, m, gradient);
}

void Pipeline::Step::backward_to_parameters(int64_t stage, int64_t m) {
  Cell cell = std::exchange(at(stage, m), {});
  if (cell.root.defined() && cell.root.requires_grad()) torch::autograd::backward({cell.root}, {cell.gradient});
  backward_weight(std::move(cell.rest));
}

Pipeline::Pipeline(std::vector<PipelineStage> stages, PipelineSchedule schedule)
    : stages_(std::move(stages)), schedule_(std::move(schedule)), order_(schedule_.order()) {
  const auto num_stages = static_cast<int64_t>(stages_.size());
  TORCH_CHECK_VALUE(num_stages == schedule_.num_stages, "[Pipeline] ", num_stages, " stages, and the schedule ",
                    schedule_.name, " is for ", schedule_.num_stages);
  for (int64_t s = 0; s < num_stages; ++s) {
    TORCH_CHECK_VALUE(stages_[s].forward, "[Pipeline] stage ", s, " has no forward function");
    TORCH_CHECK_VALUE(stages_[s].mesh.defined(), "[Pipeline] stage ", s, " has no mesh");
    const DeviceMesh& first = stages_[schedule_.rank_of(s)].mesh;
    TORCH_CHECK_VALUE(stages_[s].mesh == first, "[Pipeline] stages ", schedule_.rank_of(s), " and ", s,
                      " are on one pipeline rank of the schedule, but on different meshes: ranks ",
                      c10::IntArrayRef(first.ranks()), " and ", c10::IntArrayRef(stages_[s].mesh.ranks()));
  }
}

at::Tensor Pipeline::run_stage(int64_t stage, const at::Tensor& input) const {
  const PipelineStage& s = stages_[stage];
  check_on_stage(input, s.mesh, "input", stage);
  const MeshScope scope(s.mesh);
  at::Tensor output = s.forward(input);
  check_on_stage(output, s.mesh, "output", stage);
  return output;
}

std::vector<at::Tensor> Pipeline::step(
    const std::vector<at::Tensor>& inputs,
    const std::function<at::Tensor(const at::Tensor& output, int64_t micro_batch)>& loss) {
  const int64_t micro_batches = schedule_.num_micro_batches;
  TORCH_CHECK_VALUE(static_cast<int64_t>(inputs.size()) == micro_batches, "[Pipeline::step] ", inputs.size(),
                    " inputs, and the schedule has ", micro_batches, " micro-batches");
  TORCH_CHECK_VALUE(loss, "[Pipeline::step] no loss function");
  Step step(*this, inputs, loss);
  {
    const DelayGradientReduction delay;
    for (const PipelineAction& action : order_) step.run(action);
  }
  for (const PipelineStage& stage : stages_) {
    if (!stage.parameters.empty()) reduce_gradients(stage.parameters);
  }
  return std::move(step.losses);
}

std::vector<at::Tensor> Pipeline::forward(const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> outputs;
  for (at::Tensor t : inputs) {
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (s > 0) {
        t = moved_to(stages_[s], t);
      }
      t = run_stage(static_cast<int64_t>(s), t);
    }
    outputs.push_back(t);
  }
  return outputs;
}

std::vector<DeviceMesh> pipeline_meshes(const DeviceMesh& mesh, std::string_view dim) {
  const int64_t along = mesh.dim(dim);
  TORCH_CHECK_VALUE(mesh.ndim() > 1, "[pipeline_meshes] ", mesh.to_string(),
                    " has no other dim for the stages' own meshes: give it one of size 1");
  TORCH_CHECK_VALUE(mesh.num_copies() == 1, "[pipeline_meshes] ", mesh.to_string(),
                    " is a slice of a larger mesh: give the whole mesh");
  std::vector<int64_t> shape = mesh.shape();
  std::vector<std::string> names = mesh.names();
  shape.erase(shape.begin() + along);
  names.erase(names.begin() + along);
  std::vector<DeviceMesh> meshes;
  for (int64_t position = 0; position < mesh.size(along); ++position) {
    std::vector<int64_t> ranks;
    for (const int64_t rank : mesh.ranks()) {
      if (mesh.local_rank(rank, along) == position) ranks.push_back(rank);
    }
    meshes.emplace_back(mesh.world(), shape, names, std::move(ranks));
  }
  return meshes;
}

std::vector<PipelineStage> pipeline_stages(torch::nn::SequentialImpl& model, const std::vector<int64_t>& first_modules,
                                           const std::vector<DeviceMesh>& meshes, const PartitionFn& partition_fn) {
  const auto size = static_cast<int64_t>(model.size());
  TORCH_CHECK_VALUE(!meshes.empty(), "[pipeline_stages] no meshes");
  const bool increases =
      std::adjacent_find(first_modules.begin(), first_modules.end(), std::greater_equal<>()) == first_modules.end();
  TORCH_CHECK_VALUE(!first_modules.empty() && first_modules.front() == 0 && increases && first_modules.back() < size,
                    "[pipeline_stages] first_modules is ", c10::IntArrayRef(first_modules),
                    "; it must begin with 0, increase, and stay "
                    "below the number of modules, ",
                    size);
  std::vector<PipelineStage> stages;
  for (size_t s = 0; s < first_modules.size(); ++s) {
    PipelineStage stage{meshes[s % meshes.size()], nullptr, {}, {}};
    const int64_t end = s + 1 < first_modules.size() ? first_modules[s + 1] : size;
    auto part = std::make_shared<torch::nn::SequentialImpl>();
    for (int64_t i = first_modules[s]; i < end; ++i) {
      const auto module = model.ptr(i);
      const std::string path = model.named_children()[i].key();
      const auto in_model = [&](const std::string& name, torch::nn::Module& m, const DeviceMesh& on) {
        partition_fn(name.empty() ? path : path + "." + name, m, on);
      };
      distribute_rest_of_module(*module, stage.mesh, partition_fn ? PartitionFn(in_model) : nullptr);
      name_parameters(*module, path);
      check_on_mesh(*module, path, stage.mesh);
      for (const at::Tensor& p : module->parameters()) {
        const auto is_p = [&](const at::Tensor& other) { return other.is_same(p); };
        if (std::none_of(stage.parameters.begin(), stage.parameters.end(), is_p)) stage.parameters.push_back(p);
      }
      part->push_back(*(model.begin() + i));
    }
    stage.forward = [part](const at::Tensor& x) { return part->forward(x); };
    stages.push_back(std::move(stage));
  }
  return stages;
}

}  // namespace dtensor
