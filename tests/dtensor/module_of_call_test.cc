// The module that reports name for an operator: of its parameter, or that of the operator before.
#include "dtensor/tensor/module_of_call.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>

#include <map>
#include <string>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using Counts = std::map<std::string, int64_t>;
using internal::module_of_call;

const DeviceMesh& test_mesh() {
  static const DeviceMesh m(World::local(2), {2}, {"tp"});
  return m;
}

torch::nn::Linear linear(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// Scores of queries and keys, a softmax over sharded keys, and a layer.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : wq(register_module("wq", linear(6, 6))),
        wk(register_module("wk", linear(6, 6))),
        wv(register_module("wv", linear(6, 6))),
        wo(register_module("wo", linear(6, 6))) {}
  torch::Tensor scores(const torch::Tensor& x) const {
    const auto result = torch::linear(x, wq->weight).matmul(torch::linear(x, wk->weight).transpose(1, 2));
    torch::linear(x, wv->weight);  // a later layer, from which the scores are not computed
    return result;
  }
  torch::nn::Linear wq, wk, wv, wo;
};
TORCH_MODULE(Attention);

struct ModelImpl : torch::nn::Module {
  ModelImpl()
      : attention(register_module("attention", Attention())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        own(register_parameter("own", torch::ones({6}))) {}
  Attention attention;
  torch::nn::LayerNorm norm = nullptr;
  torch::Tensor own;
};
TORCH_MODULE(Model);

Model make_model() {
  Model model;
  distribute_module(*model, test_mesh());
  return model;
}

torch::Tensor batch(const Placements& placements = {Replicate()}) {
  return distribute_tensor(torch::randn({2, 4, 6}), test_mesh(), placements);
}

Counts counts(const CommDebugMode& comm, bool backward) {
  Counts result;
  for (const CommRow& row : comm.rows()) {
    if (row.backward == backward) result[row.module_path] += row.count;
  }
  return result;
}

TEST_CASE("module of a call: an operator without parameters comes after the last module that its inputs come from") {
  Model model = make_model();
  const auto scores = model->attention->scores(batch());
  const auto sharded = redistribute(scores, {Shard(2)});
  CommDebugMode comm;
  const auto loss = torch::logsumexp(sharded, 2).square().sum();
  CHECK(counts(comm, false) == Counts{{"after attention.wk", comm.total()}});
  CHECK(comm.total() > 0);
  CHECK(comm.to_string().find("├─ after attention.wk") == std::string::npos);  // the only one of forward: └─
  CHECK(comm.to_string().find("└─ after attention.wk: ") != std::string::npos);
}

TEST_CASE("module of a call: in backward it is that of the operator whose gradient is computed") {
  Model model = make_model();
  const auto x = batch({Shard(0)});
  const CommDebugMode comm;
  const auto y = torch::linear(x, model->attention->wo->weight);
  torch::logsumexp(redistribute(y, {Shard(2)}), 2).sum().backward();
  for (const CommRow& row : comm.rows()) {
    INFO((row.backward ? "backward " : "forward ") << row.op);
    CHECK((row.module_path == "attention.wo" || row.module_path == "after attention.wo"));
  }
  CHECK(counts(comm, true).count("attention.wo") == 1);        // the gradient of the weight
  CHECK(counts(comm, true).count("after attention.wo") == 1);  // redistribute
}

TEST_CASE("module of a call: backward names the module also if nothing listened in forward") {
  Model model = make_model();
  const auto y = torch::linear(batch({Shard(0)}), model->attention->wo->weight);
  const auto loss = torch::logsumexp(redistribute(y, {Shard(2)}), 2).sum();
  const CommDebugMode comm;
  loss.backward();
  CHECK(counts(comm, true) == Counts{{"attention.wo", 1}, {"after attention.wo", 1}});
}

TEST_CASE("module of a call: in a hook of a parameter, that of the parameter") {
  Model model = make_model();
  const CommDebugMode comm;
  std::string module;
  model->attention->wo->weight.register_hook([&](const torch::Tensor& grad) { module = module_of_call(grad); });
  torch::linear(batch(), model->attention->wo->weight).sum().backward();
  CHECK(module == "attention.wo");
}

TEST_CASE("module of a call: create_graph leaves the module as it is") {
  for (const bool create_graph : {false, true}) {
    Model model = make_model();
    const CommDebugMode comm;
    const auto hidden = torch::linear(batch(), model->attention->wq->weight).exp();
    std::string module;
    hidden.register_hook([&](const torch::Tensor& grad) { module = module_of_call(grad); });
    const auto y = torch::linear(hidden, model->attention->wo->weight).square().sum();
    torch::autograd::grad({y}, {model->attention->wq->weight}, {}, /*retain_graph=*/true, create_graph);
    INFO("create_graph " << create_graph);
    CHECK(module == "after attention.wq");
  }
}

TEST_CASE("module of a call: normalization of what is sharded is in the module of its weight") {
  Model model = make_model();
  const auto x = redistribute(torch::linear(batch(), model->attention->wq->weight), {Shard(2)});
  const auto positions = redistribute(torch::linear(batch(), model->attention->wq->weight), {Shard(0)}).transpose(1, 2);
  CommDebugMode comm;
  torch::layer_norm(x, {6}, model->norm->weight, model->norm->bias);
  const int64_t before = comm.total();
  CHECK(before > 0);
  torch::batch_norm(positions, model->norm->weight, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
  CHECK(comm.total() > before);
  INFO(comm.to_string());
  CHECK(counts(comm, false) == Counts{{"norm", comm.total()}});
}

TEST_CASE("module of a call: of a parameter among the inputs, also transposed, reshaped or cast") {
  Model model = make_model();
  const CommDebugMode comm;
  const auto x = torch::linear(batch(), model->attention->wq->weight);
  const auto& w = model->attention->wo->weight;
  CHECK(module_of_call({x, w}) == "attention.wo");
  CHECK(module_of_call({x, w.t()}) == "attention.wo");
  CHECK(module_of_call({x, w.t().to(torch::kDouble)}) == "attention.wo");
  CHECK(module_of_call({x, w.view({1, 6, 6}).transpose(1, 2)}) == "attention.wo");
  CHECK(module_of_call({x, w * 2}) == "after attention.wo");
  CHECK(module_of_call(x) == "after attention.wq");
  CHECK(module_of_call({torch::Tensor(), x}) == "after attention.wq");
  CHECK(module_of_call(x + torch::linear(batch(), w)) == "after attention.wo");
  CHECK(module_of_call(torch::linear(batch(), w) + x) == "after attention.wo");
  CHECK(module_of_call(x * model->own).empty());  // of the model itself, which has no path
}

TEST_CASE("module of a call: unknown without gradients, and where no parameter with a name is read") {
  Model model = make_model();
  const auto x = batch();
  const CommDebugMode comm;
  {
    const torch::NoGradGuard no_grad;
    CHECK(module_of_call(torch::linear(x, model->attention->wq->weight).exp()).empty());
  }
  const auto own = randn({6, 6}, test_mesh(), {Replicate()}, {.requires_grad = true});
  CHECK(module_of_call(x).empty());
  CHECK(module_of_call(x.matmul(own).exp()).empty());
  CHECK(module_of_call(torch::linear(x, model->attention->wq->weight).matmul(own)) == "after attention.wq");
  CHECK(module_of_call(torch::linear(x, model->attention->wq->weight).detach()).empty());
  CHECK(module_of_call(torch::ones({2})).empty());
}

TEST_CASE("module of a call: a ModulePath decides where no parameter is among the inputs") {
  Model model = make_model();
  const CommDebugMode comm;
  const auto x = torch::linear(batch(), model->attention->wq->weight);
  const ModulePath scope("attention.scores");
  CHECK(module_of_call(x) == "attention.scores");
  CHECK(module_of_call({x, model->attention->wo->weight}) == "attention.wo");
}

TEST_CASE("module of a call: without a listener the graph is not read") {
  Model model = make_model();
  const auto x = torch::linear(batch(), model->attention->wq->weight);
  CHECK(module_of_call(x).empty());
  CHECK(module_of_call({x, model->attention->wo->weight}) == "attention.wo");
}

TEST_CASE("module of a call: a view whose base was written to comes after what was written") {
  Model model = make_model();
  const CommDebugMode comm;
  auto x = torch::linear(batch(), model->attention->wq->weight);
  const auto row = x.select(1, 0);
  CHECK(module_of_call(row) == "after attention.wq");
  x.mul_(torch::linear(batch(), model->attention->wo->weight));
  const int64_t before = comm.total();
  CHECK(module_of_call(row) == "after attention.wo");
  CHECK(comm.total() == before);
}

TEST_CASE("module of a call: a contract's error says after which module, or in which") {
  Model model = make_model();
  const auto scores = redistribute(model->attention->scores(batch()), {Shard(2)});
  const ForbidImplicitCommunication forbid;
  CHECK_THROWS_WITH(torch::logsumexp(scores, 2), Catch::Contains(", after attention.wk"));
  const ModulePath scope("attention.scores");
  CHECK_THROWS_WITH(torch::logsumexp(scores, 2), Catch::Contains(", in attention.scores"));
}

}  // namespace
}  // namespace dtensor
