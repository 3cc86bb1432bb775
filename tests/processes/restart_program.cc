// A training that goes on where it was interrupted: restart_program FOLDER STEPS [DIE_AT]. Trains a small model on all
// ranks, with a checkpoint in FOLDER after every second step; rank 1 dies in step DIE_AT of the first attempt. Every
// rank ends by printing a number that is equal exactly when all values are. restart_test.sh looks at that.
#include <torch/nn.h>
#include <torch/optim.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>

#include "dtensor/dtensor.h"

namespace dtensor {
namespace {

constexpr int64_t kEvery = 2;

double step_of(torch::nn::Linear& model, torch::optim::Optimizer& optimizer, const DeviceMesh& mesh) {
  // New random values in each step, so that the random state has to be restored, too.
  const auto batch = distribute_tensor(torch::randn({6, 8}), mesh, {Shard(0)});
  optimizer.zero_grad();
  const auto loss = model(batch).square().sum();
  loss.backward();
  optimizer.step();
  return full_tensor(loss).item<double>();
}

void train(const std::string& folder, int64_t steps, int64_t die_at) {
  const World world = World::from_env();
  const DeviceMesh mesh(world, {world.size()}, {"dp"});
  const bool first_attempt = std::getenv("TORCHELASTIC_RESTART_COUNT") == std::string("0");
  torch::manual_seed(first_attempt ? 1 : 2);  // what a checkpoint has replaces it
  torch::nn::Linear model(8, 5);
  distribute_module(*model, mesh, [](const std::string&, torch::nn::Module& part, const DeviceMesh& on) {
    shard_parameter(part, "weight", on, {Shard(0)});
  });
  torch::optim::Adam adam(model->parameters(), 1e-2);

  const CheckpointSeries series(folder, /*keep_last=*/2);
  CheckpointContents contents{.modules = {{"model", &*model}}, .optimizers = {{"adam", &adam}}};
  int64_t step = 0;
  if (const auto last = series.latest()) {
    load_checkpoint(series.folder(*last), contents);
    step = std::get<int64_t>(contents.values.at("step"));
  }
  std::printf("begins with step %lld\n", static_cast<long long>(step));
  std::fflush(stdout);
  double loss = 0;
  while (step < steps) {
    loss = step_of(model, adam, mesh);
    if (++step == die_at && first_attempt && world.owned_ranks()[0] == 1) std::raise(SIGKILL);
    contents.values["step"] = step;
    if (step % kEvery == 0) series.save(step, contents);
  }
  double sum = loss;
  for (const auto& p : model->parameters())
    sum += full_tensor(p.detach()).to(torch::kDouble).abs().sum().item<double>();
  std::printf("result %a after step %lld\n", sum, static_cast<long long>(step));
}

}  // namespace
}  // namespace dtensor

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  dtensor::train(argv[1], std::atoll(argv[2]), argc > 3 ? std::atoll(argv[3]) : -1);
}
