// A selective state-space layer in plain ATen: gates and steps that depend on the input, and a scan over positions.
//
// Source: Gu and Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, 2023.
#pragma once

#include <torch/nn.h>

#include <string>
#include <vector>

#include "mesh/device_mesh.h"

namespace examples {

struct StateSpaceConfig {
  int64_t width = 32;
  int64_t channels = 64;
  int64_t states = 4;  // of each channel
  int64_t rank = 6;    // of the steps' projection
};

class StateSpaceImpl : public torch::nn::Module {
 public:
  explicit StateSpaceImpl(const StateSpaceConfig& c)
      : config_(c),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})))),
        in(linear("in", c.width, c.channels)),
        gate(linear("gate", c.width, c.channels)),
        select(linear("select", c.channels, c.rank + 2 * c.states)),
        step(register_module("step", torch::nn::Linear(c.rank, c.channels))),
        out(linear("out", c.channels, c.width)),
        mixing(register_parameter("mixing", torch::randn({c.channels, 4}) / 2)),
        decay(register_parameter("decay", torch::rand({c.channels, c.states}))),
        skip(register_parameter("skip", torch::ones({c.channels}))) {}

  // x: [batch, length, width].
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = norm(x);
    const auto u = torch::silu(mixed(in(y)));
    const auto selected = select(u).split_with_sizes({config_.rank, config_.states, config_.states}, -1);
    const auto steps = torch::nn::functional::softplus(step(selected[0]));  // [batch, length, channels]
    const auto kept = torch::exp(steps.unsqueeze(-1) * -torch::exp(decay));
    const auto added = (steps * u).unsqueeze(-1) * selected[1].unsqueeze(2);  // [batch, length, channels, states]
    auto state = torch::zeros_like(added.select(1, 0));
    std::vector<torch::Tensor> outputs;
    for (int64_t t = 0; t < x.size(1); ++t) {
      state = kept.select(1, t) * state + added.select(1, t);
      outputs.push_back(torch::matmul(state, selected[2].select(1, t).unsqueeze(-1)).squeeze(-1));
    }
    return x + out((torch::stack(outputs, 1) + u * skip) * torch::silu(gate(y)));
  }

 private:
  torch::nn::Linear linear(const char* name, int64_t from, int64_t to) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false)));
  }

  // Every channel's last four positions, weighted.
  torch::Tensor mixed(const torch::Tensor& x) const {
    const int64_t length = x.size(1);
    const auto before = torch::constant_pad_nd(x, {0, 0, 3, 0});
    torch::Tensor sum;
    for (int64_t k = 0; k < 4; ++k) {
      const auto term = before.narrow(1, k, length) * mixing.select(1, k);
      sum = sum.defined() ? sum + term : term;
    }
    return sum;
  }

  StateSpaceConfig config_;

 public:
  torch::nn::LayerNorm norm;
  torch::nn::Linear in, gate, select, step, out;
  torch::Tensor mixing, decay, skip;
};
TORCH_MODULE(StateSpace);

// For distribute_module(): channels over "tp", everything else replicated.
void shard_state_space(const std::string& path, torch::nn::Module& module, const dtensor::DeviceMesh& mesh);

}  // namespace examples
