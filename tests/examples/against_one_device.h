// A model on a mesh beside the same model on one device, in float64.
//
//   check_training<Net>([] { return Net(12); }, shard_net, mesh, {{torch::randn({5, 12}), {Shard(0)}}},
//                       [](Net& net, const Tensors& in) { return net(in[0]).square().mean(); });
#pragma once

#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {

using Tensors = std::vector<torch::Tensor>;

struct Input {
  torch::Tensor value;
  Placements placements;
};

inline torch::Tensor whole(const torch::Tensor& t) { return is_dtensor(t) ? full_tensor(t) : t; }

inline torch::Tensor doubles(std::vector<int64_t> sizes) { return torch::randn(sizes, torch::kDouble); }

// Compares losses, gradients and parameters of three steps of SGD with momentum. Not Adam's: it takes a gradient that
// is 0 but for rounding, as that of the keys' bias in attention is, for one of size 1.
template <class Model>
void check_training(const std::function<Model()>& make, const PartitionFn& shard, const DeviceMesh& mesh,
                    const std::vector<Input>& inputs,
                    const std::function<torch::Tensor(Model&, const Tensors&)>& loss_of) {
  CAPTURE(mesh.to_string());
  Model models[2] = {Model{nullptr}, Model{nullptr}};
  for (Model& model : models) {
    torch::manual_seed(3);
    model = make();
    model->to(torch::kDouble);
  }
  auto& [plain, distributed] = models;
  distribute_module(*distributed, mesh, shard);
  Tensors plain_inputs, distributed_inputs;
  for (const Input& in : inputs) {
    plain_inputs.push_back(in.value);
    distributed_inputs.push_back(distribute_tensor(in.value, mesh, in.placements));
  }
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD plain_optimizer(plain->parameters(), options), optimizer(distributed->parameters(), options);
  for (int step = 0; step < 3; ++step) {
    plain_optimizer.zero_grad();
    const auto expected = loss_of(plain, plain_inputs);
    expected.backward();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const MeshScope scope(mesh);
      loss = loss_of(distributed, distributed_inputs);
    }
    loss.backward();
    CHECK(loss.template item<double>() == Approx(expected.template item<double>()).epsilon(1e-11));
    plain_optimizer.step();
    optimizer.step();
    const auto expected_parameters = plain->named_parameters();
    for (const auto& p : distributed->named_parameters()) {
      INFO("step " << step << ", " << p.key());
      const auto& e = expected_parameters[p.key()];
      REQUIRE(p.value().grad().defined() == e.grad().defined());
      CHECK(torch::allclose(whole(p.value()), e, 1e-9, 1e-11));
      if (!e.grad().defined()) continue;
      CHECK(torch::allclose(whole(p.value().grad()), e.grad(), 1e-9, 1e-11));
      CHECK(DTensor(p.value().grad()).placements() == DTensor(p.value()).placements());
    }
  }
}

// Compares what `program` makes of inputs.
inline void check_program(const DeviceMesh& mesh, const std::vector<Input>& inputs,
                          const std::function<torch::Tensor(const Tensors&)>& program) {
  CAPTURE(mesh.to_string());
  Tensors plain, distributed;
  for (const Input& in : inputs) {
    plain.push_back(in.value);
    distributed.push_back(distribute_tensor(in.value, mesh, in.placements));
  }
  const auto expected = program(plain);
  const MeshScope scope(mesh);
  const auto result = program(distributed);
  REQUIRE(is_dtensor(result));
  CHECK(torch::allclose(full_tensor(result), expected, 1e-9, 1e-11));
}

}  // namespace dtensor
