// Modules made distributed in place, and DistributedModule.
#include "dtensor/distribute_module.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include "dtensor/distributed_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

const DeviceMesh& mesh() {
  static const DeviceMesh m(World::local(4), {2, 2}, {"dp", "tp"});
  return m;
}

const Placements kWhole{Replicate(), Replicate()};

// A small model with submodules, a buffer, a tensor made in forward, and a plain member.
struct NetImpl : nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    up = register_module("up", nn::Linear(3, 7));
    down = register_module("down", nn::Linear(nn::LinearOptions(7, 2).bias(false)));
    scale = register_buffer("scale", torch::ones({2}));
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    return down(torch::tanh(up(x))) * scale + torch::arange(2, x.options().device(torch::kCPU));
  }
  nn::Linear up{nullptr}, down{nullptr};
  Tensor scale;
  int calls = 0;
};
TORCH_MODULE(Net);

void partition(const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
  if (name == "up") {
    shard_parameter(m, "weight", mesh, {Replicate(), Shard(0)});
    shard_parameter(m, "bias", mesh, {Replicate(), Shard(0)});
  }
  if (name == "down") shard_parameter(m, "weight", mesh, {Replicate(), Shard(1)});
}

void batch_in(std::vector<Tensor>& in, const DeviceMesh& mesh) {
  in[0] = distribute_tensor(in[0], mesh, {Shard(0), Replicate()});
}
void full_out(std::vector<Tensor>& out, const DeviceMesh&) { out[0] = full_tensor(out[0]); }

std::vector<std::string> keys(const nn::Module& m) { return m.named_parameters().keys(); }

}  // namespace

TEST_CASE("distribute module: in place, so that members, lists and optimizers follow") {
  Net net;
  const Tensor weight = net->up->weight, before = net->up->weight.detach().clone();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  std::vector<std::string> visited;
  distribute_module(*net, mesh(), [&](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
    visited.push_back(name);
    partition(name, m, mesh);
  });
  CHECK(visited == std::vector<std::string>{"", "up", "down"});
  CHECK(net->up->weight.is_same(weight));
  CHECK(optimizer.param_groups()[0].params()[0].is_same(net->up->weight));
  CHECK(DTensor(net->up->weight).placements() == Placements{Replicate(), Shard(0)});
  CHECK(DTensor(net->down->weight).placements() == Placements{Replicate(), Shard(1)});
  CHECK(DTensor(net->scale).placements() == kWhole);
  CHECK(DTensor(net->up->bias).name() == "up.bias");
  CHECK(DTensor(net->up->weight).local_shape(1) == std::vector<int64_t>{3, 3});
  CHECK(net->up->weight.requires_grad());
  CHECK(net->up->weight.is_leaf());
  CHECK_FALSE(net->scale.requires_grad());
  CHECK(torch::equal(full_tensor(net->up->weight), before));
  const auto layouts = parameter_layouts(*net);
  REQUIRE(layouts.size() == 3);
  CHECK(layouts[1].name == "up.bias");
  CHECK(layouts[1].spec->placements() == Placements{Replicate(), Shard(0)});
}

TEST_CASE("distribute module: existing gradients follow") {
  nn::Linear linear(3, 4);
  linear(torch::ones({2, 3})).sum().backward();
  const Tensor grad = linear->weight.grad().clone();
  distribute_module(*linear, mesh(), [](const std::string&, nn::Module& m, const DeviceMesh& mesh) {
    shard_parameter(m, "weight", mesh, {Shard(0), Shard(1)});
  });
  CHECK(DTensor(linear->weight).grad()->placements() == Placements{Shard(0), Shard(1)});
  CHECK(torch::equal(full_tensor(linear->weight.grad()), grad));
}

TEST_CASE("distribute module: tied parameters stay tied") {
  struct TiedImpl : nn::Module {
    explicit TiedImpl(bool same_tensor) {
      table = register_parameter("table", torch::ones({6, 4}));
      head = register_parameter("head", same_tensor ? table : table.detach());  // one tensor, or two that share memory
    }
    Tensor table, head;
  };
  for (const bool same_tensor : {true, false}) {
    INFO(same_tensor);
    const auto module = std::make_shared<TiedImpl>(same_tensor);
    distribute_module(*module, mesh(), [](const std::string&, nn::Module& m, const DeviceMesh& mesh) {
      shard_parameter(m, "table", mesh, {Replicate(), Shard(0)});
    });
    CHECK(DTensor(module->head).placements() == Placements{Replicate(), Shard(0)});
    {
      torch::NoGradGuard no_grad;
      module->table.zero_();
    }
    CHECK(full_tensor(module->head).abs().sum().item<float>() == 0);
  }
}

TEST_CASE("distribute module: a partition function that distributes nothing is an error, and the module stays plain") {
  Net net;
  int calls = 0;
  CHECK_THROWS_WITH(distribute_module(*net, mesh(),
                                      [&](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
                                        ++calls;
                                        if (name == "upp") shard_parameter(m, "weight", mesh, {Shard(0), Replicate()});
                                      }),
                    Catch::Contains("partition_fn sharded no parameter") && Catch::Contains("\"\", \"up\", \"down\"") &&
                        Catch::Contains("pass no partition_fn"));
  CHECK(calls == 3);
  for (const auto& p : net->parameters()) CHECK_FALSE(is_dtensor(p));
  CHECK_NOTHROW(distribute_module(*net, mesh(), [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
    if (name == "up") shard_parameter(m, "bias", mesh, kWhole);
  }));
  nn::ReLU none;
  CHECK_NOTHROW(distribute_module(*none, mesh(), [](const std::string&, nn::Module&, const DeviceMesh&) {}));
  CHECK_NOTHROW(distribute_module(*nn::Linear(2, 2), mesh(), nullptr));
}

TEST_CASE("distribute module: errors") {
  Net net;
  CHECK_THROWS_WITH(distribute_module(*net, DeviceMesh()), Catch::Contains("no mesh"));
  CHECK_THROWS_WITH(distribute_module(*net, mesh(),
                                      [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
                                        if (name == "up") shard_parameter(m, "wieght", mesh, kWhole);
                                      }),
                    Catch::Contains("LinearImpl") && Catch::Contains("'wieght'") && Catch::Contains("weight, bias"));
  CHECK_THROWS_WITH(distribute_module(*net, mesh(),
                                      [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
                                        if (name == "up") shard_parameter(m, "weight", mesh, {Shard(0), Replicate()});
                                        TORCH_CHECK(name != "down", "not down");
                                      }),
                    Catch::Contains("not down"));
  for (const auto& p : net->parameters()) CHECK_FALSE(is_dtensor(p));  // unchanged
  CHECK_THROWS_WITH(shard_parameter(*net, "down.weight", mesh(), {Shard(2), Replicate()}),
                    Catch::Contains("down.weight"));
  const DeviceMesh other(World::local(4), {4});
  CHECK_THROWS_WITH(distribute_module(*net, mesh(),
                                      [&](const std::string& name, nn::Module& m, const DeviceMesh&) {
                                        if (name == "up") shard_parameter(m, "weight", other, {Shard(0)});
                                      }),
                    Catch::Contains("'up.weight'") && Catch::Contains("another world"));
  nn::Linear linear(2, 2);
  distribute_module(*linear, mesh());
  CHECK_THROWS_WITH(distribute_module(*linear, mesh()),
                    Catch::Contains("distributed already") && Catch::Contains("'weight'"));
  CHECK_NOTHROW(shard_parameter(*linear, "weight", mesh(), kWhole));
  CHECK_NOTHROW(shard_parameter(*linear, "weight", mesh(),
                                {Shard(0), Replicate()}));  // a replicated parameter can still be sharded
  CHECK_THROWS_WITH(shard_parameter(*linear, "weight", mesh(), kWhole), Catch::Contains("redistribute"));
  nn::ReLU none;
  CHECK_NOTHROW(distribute_module(*none, mesh()));
  CHECK_NOTHROW(distribute_module(*none, mesh()));

  nn::Linear a(3, 3), b(3, 3);
  {
    torch::NoGradGuard no_grad;
    b->weight.set_data(a->weight.detach());
  }
  nn::Sequential tied(a, b);
  CHECK_THROWS_WITH(
      distribute_module(*tied, mesh(),
                        [](const std::string& name, nn::Module& m, const DeviceMesh& mesh) {
                          if (!name.empty()) shard_parameter(m, "weight", mesh, {Replicate(), Shard(name == "0")});
                        }),
      Catch::Contains("'1.weight'") && Catch::Contains("'0.weight'") && Catch::Contains("share their memory"));
}

TEST_CASE("distributed module: hooks, tensors made in forward, gradients as on one device") {
  torch::manual_seed(1);
  Net plain;
  const Net original(std::dynamic_pointer_cast<NetImpl>(plain->clone()));
  const Tensor x = torch::randn({5, 3});
  const Tensor expected = plain(x);
  expected.pow(2).sum().backward();

  auto net = distribute_module(original, mesh(), partition, batch_in, full_out);
  CHECK(keys(*net) == keys(*plain));
  CHECK(net->named_buffers().keys() == plain->named_buffers().keys());
  CHECK(net->up->weight.is_same(original->up->weight));
  const Tensor y = net(x);
  CHECK_FALSE(is_dtensor(y));
  CHECK(torch::allclose(y, expected, 1e-5, 1e-6));
  y.pow(2).sum().backward();
  for (const auto& p : plain->named_parameters()) {
    INFO(p.key());
    const Tensor mine = net->named_parameters()[p.key()];
    CHECK(DTensor(mine).grad()->placements() == DTensor(mine).placements());
    CHECK(torch::allclose(full_tensor(mine.grad()), p.value().grad(), 1e-5, 1e-6));
  }
  CHECK(net->calls == 1);
  net->zero_grad();
  CHECK_FALSE(net->up->weight.grad().defined());
}

TEST_CASE("distributed module: works in Sequential, AnyModule, a larger module and the original's type") {
  const auto make = [] { return distribute_module(nn::Linear(3, 3), mesh(), nullptr, nullptr); };
  const Tensor x = distribute_tensor(torch::ones({4, 3}), mesh(), {Shard(0), Replicate()});
  nn::Sequential sequence(make(), nn::ReLU(), make());
  CHECK(keys(*sequence) == std::vector<std::string>{"0.weight", "0.bias", "2.weight", "2.bias"});
  CHECK(is_dtensor(sequence->forward(x)));
  nn::AnyModule any(make());
  CHECK(is_dtensor(any.forward(x)));
  CHECK(sequence[0]->as<nn::Linear>() != nullptr);  // still a Linear
  const nn::Linear as_linear(std::shared_ptr<nn::LinearImpl>(make().ptr()));
  CHECK(is_dtensor(as_linear->weight));
  nn::ModuleList list;
  list->push_back(make());
  CHECK(keys(*list) == std::vector<std::string>{"0.weight", "0.bias"});

  // A Sequential itself, whose forward is a template, and a module with default arguments and several results.
  auto whole = distribute_module(nn::Sequential(nn::Linear(3, 4), nn::Tanh()), mesh(), nullptr, batch_in, full_out);
  CHECK(whole(torch::ones({4, 3})).sizes() == torch::IntArrayRef{4, 4});
  auto attention =
      distribute_module(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2)), mesh(), nullptr, nullptr);
  const Tensor q = distribute_tensor(torch::ones({3, 2, 4}), mesh(), {Shard(1), Replicate()});
  const auto [value, weights] = attention(q, q, q);
  CHECK(value.sizes() == torch::IntArrayRef{3, 2, 4});
  CHECK(is_dtensor(weights));
}

TEST_CASE("distributed module: hooks see tensors in tuples, lists and optionals, and may not change their number") {
  struct ManyImpl : nn::Module {
    std::tuple<Tensor, std::vector<Tensor>> forward(const Tensor& a, std::vector<Tensor> more,
                                                    std::optional<Tensor> maybe, int64_t n) {
      return {a * n, {more.at(0), *maybe}};
    }
  };
  size_t in = 0, out = 0;
  auto many = distribute_module(
      std::make_shared<ManyImpl>(), mesh(), nullptr,
      [&](std::vector<Tensor>& t, const DeviceMesh&) {
        in = t.size();
        t[3] = t[3] * 2;
      },
      [&](std::vector<Tensor>& t, const DeviceMesh&) {
        out = t.size();
        t[2] = t[2] + 1;
      });
  const auto [a, more] = many->forward(torch::ones({1}), {torch::ones({1}), torch::ones({1})}, torch::ones({1}), 5);
  CHECK(in == 4);
  CHECK(out == 3);
  CHECK(a.item<float>() == 5);
  CHECK(more[1].item<float>() == 3);
  auto bad =
      distribute_module(nn::Identity(), mesh(), nullptr, [](std::vector<Tensor>& t, const DeviceMesh&) { t.clear(); });
  CHECK_THROWS_WITH(bad(torch::ones({1})), Catch::Contains("input_fn got 1 tensors and left 0"));
}

TEST_CASE("distributed module: train, eval, to and clone") {
  auto net = distribute_module(Net(), mesh(), partition, batch_in, full_out, "model");
  net->eval();
  CHECK_FALSE(net->is_training());
  CHECK_FALSE(net->original()->is_training());
  CHECK_FALSE(net->up->is_training());
  net->train();
  CHECK(net->up->is_training());
  CHECK(DTensor(net->up->weight).name() == "model.up.weight");

  const auto copy = std::dynamic_pointer_cast<DistributedModuleImpl<NetImpl>>(net->clone());
  REQUIRE(copy);
  CHECK(DTensor(copy->up->weight).placements() == Placements{Replicate(), Shard(0)});
  CHECK(DTensor(copy->up->weight).name() == "model.up.weight");
  const Tensor x = torch::randn({4, 3});
  CHECK(torch::equal(copy->forward(x), net(x)));
  {
    torch::NoGradGuard no_grad;
    copy->up->weight.zero_();
  }
  CHECK(full_tensor(net->up->weight).abs().sum().item<float>() > 0);

  net->to(torch::kDouble);
  CHECK(net->up->weight.scalar_type() == torch::kDouble);
  CHECK(net->original()->scale.scalar_type() == torch::kDouble);
  CHECK(DTensor(net->up->weight).placements() == Placements{Replicate(), Shard(0)});
  CHECK(DTensor(net->up->weight).name() == "model.up.weight");
  CHECK(net(x.to(torch::kDouble)).scalar_type() == torch::kDouble);
}

namespace {

// A model that calls its only layer through a typed member, as most do.
struct TypedImpl : nn::Module {
  TypedImpl() { fc = register_module("fc", nn::Linear(3, 4)); }
  Tensor forward(const Tensor& x) { return torch::tanh(fc->forward(x)); }
  nn::Linear fc{nullptr};
};

Tensor laid_out(const Tensor& t) { return distribute_tensor(t, mesh(), kWhole); }
void twice(std::vector<Tensor>& in, const DeviceMesh&) { in[0] = in[0] * 2; }

void check_names_the_hooks(const std::function<void()>& f, const std::string& module) {
  const std::string text = testing::error_text(f);
  INFO(text);
  for (const std::string& part :
       {module, std::string("input_fn, output_fn"), std::string("never ran"), std::string("DistributedModule<"),
        std::string("AnyModule"), std::string("Sequential"), std::string("allow_without_hooks()")}) {
    CHECK_THAT(text, Catch::Contains(part));
  }
}

}  // namespace

TEST_CASE("distributed module: hooks skipped by a call through a typed member are an error") {
  const Tensor x = laid_out(torch::ones({5, 3}));
  for (const bool output : {false, true}) {
    for (const bool assign : {false, true}) {
      for (const bool grad : {false, true}) {
        INFO(output << assign << grad);
        const auto typed = std::make_shared<TypedImpl>();
        const TensorsFn fn = twice;
        auto hooked = distribute_module(typed->fc, mesh(), nullptr, output ? nullptr : fn, output ? fn : nullptr, "fc");
        typed->replace_module("fc", hooked.ptr());
        if (assign) typed->fc = nn::Linear(std::shared_ptr<nn::LinearImpl>(hooked.ptr()));
        c10::AutoGradMode mode(grad);
        check_names_the_hooks([&] { typed->forward(x); }, "'fc'");
        hooked(x);  // the correct call
        CHECK_NOTHROW(typed->forward(x));
      }
    }
  }
  const auto typed = std::make_shared<TypedImpl>();
  auto named = distribute_module(typed->fc, mesh(), nullptr, twice);
  check_names_the_hooks([&] { typed->forward(x); }, "LinearImpl");
  named->allow_without_hooks();
  CHECK_NOTHROW(typed->forward(x));
  // Without hooks such calls are valid.
  const auto bare = std::make_shared<TypedImpl>();
  bare->replace_module("fc", distribute_module(bare->fc, mesh(), nullptr, nullptr).ptr());
  CHECK_NOTHROW(bare->forward(x).sum().backward());
}

TEST_CASE("distributed module: skipped hooks of nested modules, views and other dtypes are detected") {
  // The outer hooks ran, the inner ones did not.
  const auto typed = std::make_shared<TypedImpl>();
  auto inner = distribute_module(typed->fc, mesh(), nullptr, twice, nullptr, "model.fc");
  typed->replace_module("fc", inner.ptr());
  const auto outer = std::make_shared<DistributedModuleImpl<TypedImpl>>(typed, mesh(), twice, nullptr, "model");
  const Tensor x = laid_out(torch::ones({5, 3}));
  check_names_the_hooks([&] { outer->forward(x); }, "'model.fc'");
  // A whole model, called by its original type.
  const auto whole = std::make_shared<TypedImpl>();
  auto model = distribute_module(whole, mesh(), nullptr, twice, nullptr, "model");
  check_names_the_hooks([&] { whole->forward(x); }, "'model'");

  // A view of the weight is used first.
  nn::Linear linear(3, 3);
  auto hooked = distribute_module(linear, mesh(), nullptr, twice);
  check_names_the_hooks([&] { x.mm(linear->weight.t()); }, "LinearImpl");
  check_names_the_hooks([&] { x.matmul(linear->weight.view({3, 3}).t()); }, "LinearImpl");
  hooked->to(torch::kDouble);
  check_names_the_hooks([&] { linear->forward(x.to(torch::kDouble)); }, "LinearImpl");
  const auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(hooked->clone());
  hooked->allow_without_hooks();
  check_names_the_hooks([&] { copy->LinearImpl::forward(x.to(torch::kDouble)); }, "LinearImpl");
  // Sharded after watching.
  nn::Linear late(3, 3);
  auto late_hooked = distribute_module(late, mesh(), nullptr, twice);
  shard_parameter(*late, "weight", mesh(), {Shard(0), Replicate()});
  shard_parameter(*late, "bias", mesh(), {Shard(0), Replicate()});
  check_names_the_hooks([&] { late->forward(x); }, "LinearImpl");
  // Buffers only.
  nn::BatchNorm1d norm(nn::BatchNorm1dOptions(3).affine(false));
  auto norm_hooked = distribute_module(norm, mesh(), nullptr, twice);
  norm->eval();
  check_names_the_hooks([&] { norm->forward(x); }, "BatchNorm1dImpl");
}

TEST_CASE("distributed module: no error if hooks ran, or without a forward") {
  int calls = 0;
  const TensorsFn count = [&](std::vector<Tensor>&, const DeviceMesh&) { ++calls; };
  const auto make = [&] { return distribute_module(nn::Linear(3, 3), mesh(), nullptr, count, count); };
  const Tensor x = laid_out(torch::ones({4, 3}));
  nn::Sequential sequence(make(), nn::ReLU(), make());
  sequence->forward(x).sum().backward();
  nn::AnyModule any(make());
  any.forward(x).sum().backward();
  struct MemberImpl : nn::Module {
    explicit MemberImpl(DistributedModule<nn::LinearImpl> layer) { fc = register_module("fc", std::move(layer)); }
    Tensor forward(const Tensor& t) { return fc(t); }
    DistributedModule<nn::LinearImpl> fc{nullptr};
  };
  MemberImpl(make()).forward(x).sum().backward();
  CHECK(calls == 8);

  // Forward is never called: operators of optimizers, initialisers, averages, penalties and files on the parameters.
  auto module = make();
  const Tensor weight = module->weight;
  const Tensor before = weight.detach().clone();
  Tensor average = before.clone();
  CHECK_NOTHROW((weight - before).pow(2).sum().backward());
  CHECK_NOTHROW(weight.norm().item<double>());
  CHECK_NOTHROW((weight * laid_out(torch::tensor(2.f))).sum());
  CHECK_NOTHROW(torch::cat({weight.flatten(), before.flatten()}));
  CHECK_NOTHROW(torch::allclose(weight, before));
  for (auto& p : module->parameters()) p.mutable_grad() = torch::ones_like(p);
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  torch::optim::AdamW adam(module->parameters(), torch::optim::AdamWOptions(0.1));
  CHECK_NOTHROW(sgd.step());
  CHECK_NOTHROW(adam.step());
  CHECK_NOTHROW(nn::utils::clip_grad_norm_(module->parameters(), 1.));
  torch::NoGradGuard no_grad;
  CHECK_NOTHROW(average.mul_(0.9).add_(weight, 0.1));
  CHECK_NOTHROW(nn::init::xavier_uniform_(weight));
  CHECK_NOTHROW(nn::init::eye_(weight));
  CHECK_NOTHROW(average.copy_(weight));
  CHECK_NOTHROW(weight.copy_(before));
  CHECK_NOTHROW(Tensor(weight).index_put_({torch::indexing::Slice(0, 1)}, x.slice(0, 0, 1)));
  CHECK_NOTHROW(full_tensor(weight));
  CHECK(calls == 8);
}

TEST_CASE("distributed module: reports name the modules") {
  auto net = distribute_module(Net(), mesh(), partition, batch_in, full_out, "model");
  CommDebugMode comm;
  net(torch::ones({4, 3})).sum().backward();
  bool down = false, gradient = false;
  for (const CommRow& r : comm.rows()) {
    down |= !r.backward && (r.module_path == "model" || r.module_path == "model.down");
    gradient |= r.backward && r.op == "gradient" && r.argument.rfind("model.", 0) == 0 && r.module_path == "model";
  }
  CHECK(down);
  CHECK(gradient);
}

TEST_CASE("distribute module: an abstract world") {
  const DeviceMesh big(World::abstract(4096), {64, 64}, {"dp", "tp"});
  auto net = distribute_module(Net(), big, partition, [](std::vector<Tensor>& in, const DeviceMesh& m) {
    in[0] = distribute_tensor(in[0], m, {Shard(0), Replicate()});
  });
  CommDebugMode comm;
  const Tensor y = net(torch::ones({4, 3}));
  y.sum().backward();
  CHECK(DTensor(net->up->weight).grad()->placements() == Placements{Replicate(), Shard(0)});
  CHECK(comm.total() > 0);
}

}  // namespace dtensor
