// Saves a model and an optimizer, or loads and checks them, as a job of however many processes: for torchrun_test.py.
//
//   torchrun_program save|load FOLDER [rank that has a tensor of its own]
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "checkpoint/checkpoint.h"
#include "dtensor/distributed_module.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace {

using namespace dtensor;

at::Tensor numbered() { return at::linspace(0, 1, 12 * 7, at::kFloat).view({12, 7}); }

// As rows over four ranks, say, and as columns over two.
void lay_out(torch::nn::Linear& model, const DeviceMesh& mesh, bool rows) {
  distribute_module(*model, mesh, [&](const std::string&, torch::nn::Module& part, const DeviceMesh&) {
    shard_parameter(part, "weight", mesh, {Shard(rows ? 0 : 1)});
  });
}

int check(bool ok, const char* what) {
  if (!ok) std::printf("differs: %s\n", what);
  return ok ? 0 : 1;
}

int run(const std::string& verb, const std::string& folder, int64_t odd_rank) {
  const World world = World::from_env();
  const DeviceMesh mesh(world, {world.size()});
  torch::nn::Linear model(7, 12);
  lay_out(model, mesh, /*rows=*/verb == "save");
  torch::optim::Adam adam(model->parameters(), 0.5);
  CheckpointContents contents{.modules = {{"model", &*model}}, .optimizers = {{"adam", &adam}}};
  if (verb == "save") {
    {
      const torch::NoGradGuard guard;
      model->weight.copy_(distribute_tensor(numbered(), mesh, {Replicate()}));
    }
    (model->weight * distribute_tensor(numbered(), mesh, {Replicate()})).sum().backward();
    adam.step();
    contents.values = {{"step", int64_t{1}}};
    if (world.owned_ranks().front() == odd_rank) contents.tensors = {{"of its own", at::full({1}, 1)}};
    save_checkpoint(folder, contents);
    return 0;
  }
  load_checkpoint(folder, contents);
  const at::Tensor g = numbered();
  const auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().at(model->weight.unsafeGetTensorImpl()));
  return check(full_tensor(state.exp_avg()).allclose(g * 0.1), "exp_avg") +
         check(full_tensor(state.exp_avg_sq()).allclose(g * g * 0.001), "exp_avg_sq") +
         check(full_tensor(model->weight.detach()).allclose(g - 0.5 * g.gt(0)), "weight") +
         check(std::get<int64_t>(contents.values.at("step")) == 1, "step");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  return run(argv[1], argv[2], argc > 3 ? std::atoi(argv[3]) : -1);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
