// Recurrent networks over sequences [length, batch, features]: torch::nn's own, and a cell by hand.
#pragma once

#include <torch/nn.h>

#include <vector>

namespace examples {

// A gated cell as people write it: one product for the input and one for the state, gates by chunk().
// Source: Cho et al., Learning Phrase Representations using RNN Encoder-Decoder, 2014.
class GatedLoopImpl : public torch::nn::Module {
 public:
  GatedLoopImpl(int64_t features, int64_t hidden)
      : input(register_module("input", torch::nn::Linear(features, 3 * hidden))),
        state(register_module("state", torch::nn::Linear(hidden, 3 * hidden))),
        hidden_(hidden) {}

  // x: [length, batch, features] -> the state after each position, [length, batch, hidden].
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::zeros({x.size(1), hidden_}, x.options());
    std::vector<torch::Tensor> states;
    for (const auto& now : x.unbind(0)) {
      const auto in = input(now).chunk(3, -1), back = state(h).chunk(3, -1);
      const auto update = torch::sigmoid(in[0] + back[0]), reset = torch::sigmoid(in[1] + back[1]);
      h = update * h + (1 - update) * torch::tanh(in[2] + reset * back[2]);
      states.push_back(h);
    }
    return torch::stack(states);
  }

  torch::nn::Linear input, state;

 private:
  int64_t hidden_;
};
TORCH_MODULE(GatedLoop);

}  // namespace examples
