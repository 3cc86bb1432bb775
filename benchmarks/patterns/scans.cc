// State-space layers and recurrences.
#include <torch/nn.h>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/layouts.h"
#include "examples/models/recurrent.h"
#include "examples/models/state_space.h"

namespace dtensor::benchmarks {
namespace {

using examples::over;

// `Model` of so many features of input and of state, whose output `output` reads; batch over "dp".
template <class Model, class Output>
Pattern recurrence(const DeviceMesh& mesh, int64_t scale, Model model, Output output) {
  const int64_t m = mesh.size("dp"), batch = 4 * scale;
  distribute_module(*model, mesh);
  const auto x = randn({6, batch * m, 16 * scale}, mesh, over(mesh, "dp", Shard(1)));
  return training(
      mesh, [model, x, output]() mutable { return output(model, x).square().mean(); }, all_reduce(4, m),
      gradients(*model, m));
}

}  // namespace

Pattern lstm(const DeviceMesh& mesh, int64_t scale) {
  torch::nn::LSTM model(torch::nn::LSTMOptions(16 * scale, 24 * scale).num_layers(2));
  return recurrence(mesh, scale, model, [](auto& model, const at::Tensor& x) { return std::get<0>(model(x)); });
}

Pattern gru(const DeviceMesh& mesh, int64_t scale) {
  torch::nn::GRU model(torch::nn::GRUOptions(16 * scale, 24 * scale).num_layers(2));
  return recurrence(mesh, scale, model, [](auto& model, const at::Tensor& x) { return std::get<0>(model(x)); });
}

Pattern gated_loop(const DeviceMesh& mesh, int64_t scale) {
  examples::GatedLoop model(16 * scale, 24 * scale);
  return recurrence(mesh, scale, model, [](auto& model, const at::Tensor& x) { return model(x); });
}

Pattern state_space(const DeviceMesh& mesh, int64_t scale) {
  const int64_t m = size_of(mesh, "dp"), n = size_of(mesh, "tp"), batch = 2 * scale, length = 8 * scale;
  examples::StateSpaceConfig c;
  c.width *= scale;
  c.channels *= scale;
  examples::StateSpace model(c);
  distribute_module(*model, mesh, examples::shard_state_space);
  const auto x = randn({batch * m, length, c.width}, mesh, over(mesh, "dp", Shard(0)));
  const double positions = static_cast<double>(batch * length) * 4;
  // The inputs of steps and states; the layer's output, or the gradient of its norm.
  const Traffic through = all_reduce(positions * static_cast<double>(c.rank + 2 * c.states), n) +
                          all_reduce(positions * static_cast<double>(c.width), n);
  return training(
      mesh, [model, x]() mutable { return model(x).square().mean(); }, through + all_reduce(4, m),
      through + gradients(*model, m));
}

}  // namespace dtensor::benchmarks
