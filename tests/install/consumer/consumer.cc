// Shards an unchanged module, trains it a step, and adds an operator's rule: all of it by public headers.
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <torch/nn/modules/linear.h>

#include <iostream>

#include "dtensor/distributed_module.h"
#include "dtensor/dtensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

using namespace dtensor;

// The library leaves these names to programs.
struct Part {
  int rows = 1;
};
struct Run {
  Part part;
};
struct Group {
  Run run;
};
struct Block {
  Group group;
};
struct Window {
  Block block;
};
struct Problem {
  Window window;
};

int main() {
  if (Problem().window.block.group.run.part.rows != 1) return 1;
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  torch::nn::Linear model(8, 4);
  torch::nn::Linear plain(8, 4);
  {
    const at::NoGradGuard no_grad;
    plain->weight.copy_(model->weight);
    plain->bias.copy_(model->bias);
  }
  const auto x = at::arange(48, at::kFloat).view({6, 8}).div(48);
  distribute_module(*model, mesh);
  const auto y = model(distribute_tensor(x, mesh, {Shard(0), Replicate()}));
  y.square().sum().backward();
  plain(x).square().sum().backward();
  const bool same = at::allclose(full_tensor(model->weight.grad()), plain->weight.grad(), 1e-5, 1e-6);

  RuleRegistry::instance().add("consumer::none", factor_op([](const OpCall& call) { return pointwise(call); }));
  std::cout << DTensor(y).placements() << " " << version() << " " << libtorch_version() << " "
            << (same ? "equal" : "different") << "\n";
  return same ? 0 : 1;
}
