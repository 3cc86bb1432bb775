// checkpoint(): the gradients of the same forward without it, with less memory until backward.
#include "dtensor/activation_checkpoint.h"

#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/nn.h>

#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

// Two linear layers with a nonlinearity and dropout between, and positions made in forward.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : up(register_module("up", torch::nn::Linear(width, 4 * width))),
        dropout(register_module("dropout", torch::nn::Dropout(0.3))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}
  Tensor forward(const Tensor& x) {
    ++calls;
    const Tensor positions = torch::arange(x.size(-1), x.options().requires_grad(false)).div(10);
    return x + down(dropout(torch::tanh(up(x + positions))));
  }
  int calls = 0;
  torch::nn::Linear up;
  torch::nn::Dropout dropout;
  torch::nn::Linear down;
};
TORCH_MODULE(Block);

struct Model {
  std::vector<Block> blocks;

  explicit Model(int64_t width = 6, int64_t layers = 3) {
    torch::manual_seed(3);
    for (int64_t i = 0; i < layers; ++i) {
      blocks.emplace_back(width);
      blocks.back()->to(torch::kDouble);
    }
  }
  void distribute(const DeviceMesh& mesh) {
    for (Block& block : blocks) {
      distribute_module(*block, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& on) {
        const Placements by_rows = {Replicate(), Shard(0)}, by_columns = {Replicate(), Shard(1)};
        if (name == "up") shard_parameter(m, "weight", on, by_rows);
        if (name == "up") shard_parameter(m, "bias", on, by_rows);
        if (name == "down") shard_parameter(m, "weight", on, by_columns);
      });
    }
  }
  Tensor forward(Tensor x, bool checkpointed) {
    for (Block& block : blocks) {
      x = checkpointed ? checkpoint([block](const Tensor& t) mutable { return block->forward(t); }, x)
                       : block->forward(x);
    }
    return x.pow(2).mean();
  }
  Tensors parameters() const {
    Tensors all;
    for (const Block& block : blocks) {
      for (const Tensor& p : block->parameters()) all.push_back(p);
    }
    return all;
  }
  Tensors take_gradients() {
    Tensors grads;
    for (const Tensor& p : parameters()) {
      grads.push_back(is_dtensor(p.grad()) ? full_tensor(p.grad()) : p.grad());
      p.mutable_grad() = Tensor();
    }
    return grads;
  }
  int calls() const {
    int sum = 0;
    for (const Block& block : blocks) sum += block->calls;
    return sum;
  }
};

Tensor batch() { return torch::arange(48, torch::kDouble).view({8, 6}).sin(); }

void check_equal(const Tensors& actual, const Tensors& expected) {
  REQUIRE(actual.size() == expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    INFO("gradient " << i);
    CHECK(torch::equal(actual[i], expected[i]));
  }
}

struct Distributed {
  DeviceMesh mesh{World::local(4), {2, 2}, {"dp", "tp"}};
  Model model;
  Tensor x;
  Distributed() {
    model.distribute(mesh);
    x = distribute_tensor(batch(), mesh, {Shard(0), Replicate()});
  }
  Tensor loss(bool checkpointed) {
    MeshScope scope(mesh);
    torch::manual_seed(11);
    return model.forward(x, checkpointed);
  }
};

TEST_CASE("a checkpointed plain model with dropout has the gradients of the model, bit by bit") {
  Model model;
  torch::manual_seed(5);
  model.forward(batch(), false).backward();
  const Tensors expected = model.take_gradients();
  torch::manual_seed(5);
  const Tensor loss = model.forward(batch(), true);
  const Tensor next = torch::rand({1});
  loss.backward();
  check_equal(model.take_gradients(), expected);
  CHECK(model.calls() == 9);  // 3 without, 3 with and 3 again
  // Computing again leaves the generator as it was.
  torch::manual_seed(5);
  model.forward(batch(), false);
  CHECK(torch::equal(torch::rand({1}), next));
}

TEST_CASE("a checkpointed distributed model has the gradients and the gradient buckets of the model") {
  Distributed d;
  d.loss(false).backward();
  const Tensors expected = d.model.take_gradients();

  CommDebugMode comm;
  d.loss(false).backward();
  d.model.take_gradients();
  std::map<std::string, int64_t> buckets, checkpointed;
  const auto count_gradients = [&](std::map<std::string, int64_t>& counts) {
    for (const CommRow& row : comm.rows()) {
      if (row.op == "gradient") counts[row.argument] += row.count;
    }
  };
  count_gradients(buckets);
  comm.reset();
  d.loss(true).backward();
  count_gradients(checkpointed);
  CHECK(!buckets.empty());
  CHECK(checkpointed == buckets);
  check_equal(d.model.take_gradients(), expected);
}

TEST_CASE("torch::autograd::grad through a checkpoint returns the gradients of chosen parameters, also of gradients") {
  Distributed d;
  const Tensors some = {d.model.blocks[1]->up->weight, d.model.blocks[0]->down->bias};
  const auto second_order = [&](bool checkpointed) {
    const Tensors first = torch::autograd::grad({d.loss(checkpointed)}, some, {}, /*retain_graph=*/true,
                                                /*create_graph=*/true);
    const Tensors second = torch::autograd::grad({first[0].pow(2).sum() + first[1].sum()}, some);
    return Tensors{full_tensor(first[0]), full_tensor(first[1]), full_tensor(second[0]), full_tensor(second[1])};
  };
  const Tensors expected = second_order(false), actual = second_order(true);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(torch::allclose(actual[i], expected[i], 1e-10, 1e-12));
}

TEST_CASE("hooks of a parameter run once in the backward of a checkpointed model") {
  Distributed d;
  int runs = 0;
  d.model.blocks[0]->up->weight.register_hook([&](const Tensor& g) {
    ++runs;
    return g * 2;
  });
  d.loss(false).backward();
  const Tensors expected = d.model.take_gradients();
  CHECK(runs == 1);
  d.loss(true).backward();
  CHECK(runs == 2);
  check_equal(d.model.take_gradients(), expected);
}

TEST_CASE("a second backward with retain_graph computes the checkpointed parts once more") {
  Distributed d;
  const Tensor loss = d.loss(true);
  loss.backward({}, /*retain_graph=*/true);
  const Tensors once = d.model.take_gradients();
  CHECK(d.model.calls() == 6);
  loss.backward();
  CHECK(d.model.calls() == 9);
  check_equal(d.model.take_gradients(), once);
}

TEST_CASE("checkpoints within a checkpoint give the same gradients") {
  Model model;
  torch::manual_seed(5);
  model.forward(batch(), false).backward();
  const Tensors expected = model.take_gradients();
  torch::manual_seed(5);
  checkpoint([&](const Tensor& x) { return model.forward(x, true); }, batch()).backward();
  check_equal(model.take_gradients(), expected);
}

TEST_CASE("a checkpointed function of two inputs with two results passes gradients to both inputs") {
  const auto gradients = [](bool checkpointed) {
    const Tensor a = batch().requires_grad_(), b = batch().cos().requires_grad_();
    const auto function = [](const Tensors& in) { return Tensors{(in[0] * in[1]).exp(), in[1].sigmoid() * in[0]}; };
    const Tensors out = checkpointed ? checkpoint(function, {a, b}) : function({a, b});
    (out[0].sum() + out[1].pow(2).sum()).backward();
    return Tensors{a.grad(), b.grad()};
  };
  check_equal(gradients(true), gradients(false));
}

TEST_CASE("before backward, eight checkpointed blocks of 64 columns hold less than a third of the memory") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2, 1}, {"dp", "tp"});
  Model model(64, 8);
  model.distribute(mesh);
  const Tensor x = distribute_tensor(torch::ones({512, 64}, torch::kDouble), mesh, {Shard(0), Replicate()});
  const auto held = [&](bool checkpointed) {
    MeshScope scope(mesh);
    const int64_t before = world.memory().live_bytes();
    const Tensor loss = model.forward(x, checkpointed);
    return world.memory().live_bytes() - before;
  };
  const int64_t usual = held(false), checkpointed = held(true);
  INFO(usual << " and " << checkpointed << " bytes");
  CHECK(checkpointed * 3 < usual);
}

TEST_CASE("after backward, and after grad() of one parameter, checkpointed parts hold no memory") {
  const World world = World::local(2);
  const DeviceMesh mesh(world, {2, 1}, {"dp", "tp"});
  Model model(64, 4);
  model.distribute(mesh);
  const Tensor x = distribute_tensor(torch::ones({512, 64}, torch::kDouble), mesh, {Shard(0), Replicate()});
  const auto step = [&](bool all) {
    MeshScope scope(mesh);
    const Tensor loss = model.forward(x, true);
    if (all) {
      loss.backward();
    } else {
      torch::autograd::grad({loss}, {model.blocks[3]->down->weight});
    }
  };
  step(true);  // makes the gradients
  const int64_t before = world.memory().live_bytes();
  for (int i = 0; i < 3; ++i) {
    step(true);
    CHECK(world.memory().live_bytes() == before);
    step(false);
    CHECK(world.memory().live_bytes() == before);
  }
}

TEST_CASE("an input that was written to in place after checkpoint() is an error in backward") {
  const Tensor x = batch().requires_grad_() * 1;
  const Tensor y = checkpoint([](const Tensor& t) { return t.exp(); }, x);
  x.add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), Catch::Contains("input 0 of the function, Double [8, 6]"));
}

TEST_CASE("a tensor that an operator of the function saved, and that is written to in place later, is an error") {
  const Tensor x = batch().requires_grad_();
  const Tensor y = checkpoint([](const Tensor& t) { return t.exp().add_(1); }, x);
  CHECK_THROWS_WITH(y.sum().backward(), Catch::Contains("after an operator had saved it for backward"));
}

TEST_CASE("grad() of operators of the checkpointed function inside the function is an error that says so") {
  const Tensor x = batch().requires_grad_();
  const auto function = [](const Tensor& t) {
    return torch::autograd::grad({t.exp().sum()}, {t}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
  };
  CHECK_THROWS_WITH(checkpoint(function, x), Catch::Contains("inside the checkpointed function"));
}

TEST_CASE("under autocast to bfloat16, a checkpoint computes in bfloat16 again in a backward without autocast") {
  Model model;
  for (Block& block : model.blocks) block->to(torch::kFloat);
  const auto loss_in_bfloat16 = [&](bool checkpointed) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    torch::manual_seed(5);
    const Tensor loss = model.forward(batch().to(torch::kFloat), checkpointed);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return loss;
  };
  loss_in_bfloat16(false).backward();
  const Tensors expected = model.take_gradients();
  loss_in_bfloat16(true).backward();
  CHECK(!at::autocast::is_autocast_enabled(at::kCPU));
  check_equal(model.take_gradients(), expected);
}

TEST_CASE("without grad mode checkpoint() calls the function once and saves nothing") {
  torch::NoGradGuard no_grad;
  int calls = 0;
  const Tensor y = checkpoint([&](const Tensor& x) { return ++calls, x * 2; }, batch());
  CHECK(calls == 1);
  CHECK(torch::equal(y, batch() * 2));
}

TEST_CASE("a checkpointed function that saves another shape in backward is an error that names both shapes") {
  int calls = 0;
  const Tensor x = batch().requires_grad_();
  const auto function = [&](const Tensor& t) { return (++calls == 1 ? t : t.narrow(0, 0, 3)).exp().sum(); };
  const Tensor loss = checkpoint(function, x);
  CHECK_THROWS_WITH(loss.backward(),
                    Catch::Contains("[checkpoint]") && Catch::Contains("Double [3, 6], and was Double [8, 6]"));
}

TEST_CASE("a checkpointed function that saves fewer tensors in backward is an error with both numbers") {
  int calls = 0;
  const Tensor x = batch().requires_grad_();
  const auto function = [&](const Tensor& t) { return ++calls == 1 ? t.exp().tanh() : t.exp(); };
  const Tensor loss = checkpoint(function, x).sum();
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("saves 1 tensors, and saved 2"));
}

TEST_CASE("an error of the function in backward passes on, and the next backward computes the part again") {
  int calls = 0;
  const Tensor x = batch().requires_grad_();
  const auto function = [&](const Tensor& t) {
    TORCH_CHECK(++calls != 2, "no disk");
    return t.exp();
  };
  const Tensor loss = checkpoint(function, x).sum();
  CHECK_THROWS_WITH(loss.backward({}, /*retain_graph=*/true), Catch::Contains("no disk"));
  loss.backward();
  CHECK(torch::equal(x.grad(), batch().exp()));
}

TEST_CASE("in an abstract world a checkpoint counts the communication of forward again") {
  const DeviceMesh mesh(World::abstract(64), {8, 8}, {"dp", "tp"});
  Model model;
  model.distribute(mesh);
  const Tensor x = zeros({64, 6}, mesh, {Shard(0), Replicate()}, {.dtype = torch::kDouble});
  MeshScope scope(mesh);
  CommDebugMode comm;
  const Tensor loss = model.forward(x, true);
  const int64_t forward = comm.forward_count();
  loss.backward();
  CHECK(forward > 0);
  CHECK(comm.forward_count() > forward);
}

}  // namespace
}  // namespace dtensor
