// Message passing on graphs in plain torch::nn: nodes [nodes, features], whose messages are added at their targets.
//
// Source: Gilmer et al., Neural Message Passing for Quantum Chemistry, 2017.
#pragma once

#include <torch/nn.h>

namespace examples {

class MessagePassingImpl : public torch::nn::Module {
 public:
  explicit MessagePassingImpl(int64_t width)
      : message(register_module("message", torch::nn::Linear(width, width))),
        update(register_module("update", torch::nn::Linear(width, width))) {}

  // sources, targets: [edges], nodes of each edge.
  torch::Tensor along_edges(const torch::Tensor& nodes, const torch::Tensor& sources, const torch::Tensor& targets) {
    const auto messages = torch::relu(message(nodes)).index_select(0, sources);
    return torch::relu(update(nodes) + torch::zeros_like(nodes).index_add(0, targets, messages));
  }

  // neighbours: [nodes, k], of each node; the same edges if every node has k of them.
  torch::Tensor from_neighbours(const torch::Tensor& nodes, const torch::Tensor& neighbours) {
    const auto messages = torch::relu(message(nodes)).index_select(0, neighbours.flatten());
    return torch::relu(update(nodes) + messages.view({nodes.size(0), -1, nodes.size(1)}).sum(1));
  }

  torch::nn::Linear message, update;
};
TORCH_MODULE(MessagePassing);

}  // namespace examples
