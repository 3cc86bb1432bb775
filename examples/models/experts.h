// A mixture of experts with a capacity, in plain torch::nn: every token goes to its best expert while there is room.
//
// Source: Lepikhin et al., GShard, 2020.
#pragma once

#include <torch/nn.h>

#include <string>

#include "mesh/device_mesh.h"

namespace dtensor {
struct ParallelPlan;
}

namespace examples {

struct ExpertsConfig {
  int64_t width = 16;
  int64_t hidden = 32;
  int64_t experts = 8;
  int64_t capacity = 6;  // tokens of a group that an expert takes
};

class ExpertsImpl : public torch::nn::Module {
 public:
  explicit ExpertsImpl(const ExpertsConfig& c)
      : router(register_module("router", torch::nn::Linear(torch::nn::LinearOptions(c.width, c.experts).bias(false)))),
        up(register_parameter("up", torch::randn({c.experts, c.width, c.hidden}) / 4)),
        down(register_parameter("down", torch::randn({c.experts, c.hidden, c.width}) / 4)),
        config_(c) {}

  // x: [groups, tokens, width].
  torch::Tensor forward(const torch::Tensor& x) {
    const auto shares = torch::softmax(router(x), -1);
    const auto [share, expert] = shares.max(-1);
    const auto chosen = torch::one_hot(expert, config_.experts);                    // [groups, tokens, experts]
    const auto place = (chosen.cumsum(1) * chosen).sum(-1) - 1;                     // among its expert's tokens
    const auto slots = torch::arange(config_.capacity, place.options());            // none where there is no room
    const auto seats = (place.unsqueeze(-1) == slots).to(x.options());              // [groups, tokens, capacity]
    const auto routes = chosen.to(x.options()).unsqueeze(-1) * seats.unsqueeze(2);  // [.., experts, capacity]
    const auto in = torch::einsum("gtec,gtd->egcd", {routes, x});
    const auto hidden = torch::relu(torch::einsum("egcd,edh->egch", {in, up}));
    const auto out = torch::einsum("egch,ehd->egcd", {hidden, down});
    return torch::einsum("gtec,egcd->gtd", {routes * share.unsqueeze(-1).unsqueeze(-1), out});
  }

  torch::nn::Linear router;
  torch::Tensor up, down;

 private:
  ExpertsConfig config_;
};
TORCH_MODULE(Experts);

// For distribute_module(): experts over "ep", everything else replicated.
void shard_experts(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

// For parallelize_module() over "ep": the same layouts as a style of the module itself.
dtensor::ParallelPlan experts_styles();

}  // namespace examples
