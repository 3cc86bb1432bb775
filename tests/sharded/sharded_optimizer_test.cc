// Optimizers over sharded parameters step like those over plain ones.
#include "sharded/sharded_optimizer.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "sharded/factories.h"
#include "sharded/tensor_ops.h"
#include "tests/sharded/lookup_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::sharded {
namespace {

using Catch::Contains;
using testing::error_text;
using namespace torch::optim;

// A plain parameter, and one that is sharded if there is a spec.
struct Model : torch::nn::Module {
  explicit Model(const std::optional<ChunkShardingSpec>& spec) {
    torch::manual_seed(0);
    param = register_parameter("param", torch::rand({5, 10}));
    if (spec) {
      const auto options = ShardedTensorOptions{.requires_grad = true};
      sharded = register_parameter("sharded_param", rand(*spec, {20, 10}, test_world(), options).tensor());
    } else {
      sharded = register_parameter("sharded_param", torch::rand({5, 10}));
    }
  }
  // For every rank of this process.
  std::vector<at::Tensor> forward(const at::Tensor& input) {
    std::vector<at::Tensor> outputs;
    for (const at::Tensor& own : is_sharded(sharded) ? shards() : std::vector<at::Tensor>{sharded}) {
      outputs.push_back(param + own + input);
    }
    return outputs;
  }
  std::vector<at::Tensor> shards() {
    return per_rank(own_ranks(), [&](int64_t rank) { return ShardedTensor(sharded).local_tensor(rank); });
  }
  at::Tensor param, sharded;
};

TEST_CASE("SO-1: a step of SGD decreases sharded and local parameters by 0.1; SO-3: copies are unchanged") {
  Model local({}), model(chunks(0, kAll));
  for (int64_t rank : own_ranks()) {
    ShardedTensor(model.sharded).local_shards(rank)[0].tensor = local.sharded.detach().clone().requires_grad_();
  }
  SGD plain(local.parameters(), SGDOptions(0.1));
  ShardedOptimizer<SGD> sgd(named_params_with_sharded_tensor(model), SGDOptions(0.1));
  plain.zero_grad();
  sgd.zero_grad();
  const NamedParams before = deepcopy(sgd.named_params());
  const at::Tensor input = torch::rand({5, 10}).requires_grad_();
  local.forward(input)[0].sum().backward();
  const auto outputs = model.forward(input);
  // Of several ranks in this process, each would have its own plain parameter.
  for (const at::Tensor& out : outputs) (out.sum() - model.param.sum()).backward();
  model.param.mutable_grad() = at::ones_like(model.param);
  plain.step();
  sgd.step();
  for (const at::Tensor& shard : model.shards()) CHECK(at::allclose(shard, local.sharded));
  CHECK(at::allclose(model.param, local.param));
  CHECK(at::allclose(model.param, before["param"] - 0.1));
  const ShardedTensor copy(before["sharded_param"]);
  for (int64_t rank : own_ranks()) {
    const at::Tensor now = ShardedTensor(model.sharded).local_tensor(rank).detach();
    CHECK_FALSE(at::equal(now, copy.local_tensor(rank).detach()));
    CHECK(at::allclose(now, copy.local_tensor(rank).detach() - 0.1));
  }
  CHECK_FALSE(at::equal(before["param"], model.param));
}

struct TwoLayers : torch::nn::Module {
  TwoLayers()
      : linear1(register_module("linear1", torch::nn::Linear(17, 12))),
        linear2(register_module("linear2", torch::nn::Linear(12, 29))) {}
  torch::nn::Linear linear1, linear2;
};

TEST_CASE("SO-2: names of parameters, sharded and plain") {
  Model model(chunks(0, kAll));
  CHECK(named_params_with_sharded_tensor(model).keys() == std::vector<std::string>{"param", "sharded_param"});
  TwoLayers layers;
  shard_parameter(*layers.linear1, "weight", chunks(0, kAll), test_world());
  shard_parameter(*layers.linear2, "weight", chunks(1, kAll), test_world());
  const NamedParams params = named_params_with_sharded_tensor(layers);
  CHECK(params.size() == 4);
  for (const char* name : {"linear1.bias", "linear2.bias", "linear1.weight", "linear2.weight"})
    CHECK(params.contains(name));
  CHECK_FALSE(params.contains("bias"));
  CHECK(is_sharded(params["linear2.weight"]));
  CHECK(ShardedTensor(params["linear1.weight"]).local_tensor(own_ranks()[0]).sizes() == c10::IntArrayRef({3, 17}));
  CHECK(named_params_with_sharded_tensor(layers, "net").contains("net.linear1.bias"));
  CHECK(named_params_with_sharded_tensor(layers, "", /*recurse=*/false).is_empty());
  CHECK(local_params(params).size() == 2 + 2 * own_ranks().size());

  // A sharded buffer is what is a plain attribute in Python, and comes first; a tied parameter comes once.
  layers.register_buffer("extra", ones(chunks(0, kAll), {8, 2}, test_world()).tensor());
  layers.register_parameter("tied", layers.linear1->bias);
  const auto keys = named_params_with_sharded_tensor(layers).keys();
  CHECK(keys == std::vector<std::string>{"extra", "tied", "linear1.weight", "linear2.weight", "linear2.bias"});
}

TEST_CASE("SO-4: groups and states are visible; adding a group is an error, as in PyTorch") {
  Model model(chunks(0, kAll));
  ShardedOptimizer<Adam> adam(named_params_with_sharded_tensor(model), AdamOptions(0.25));
  REQUIRE(adam.param_groups().size() == 1);
  CHECK(adam.param_groups()[0].params().size() == 1 + own_ranks().size());
  CHECK(adam.param_groups()[0].options().get_lr() == 0.25);
  CHECK(adam.state().empty());
  CHECK(adam.named_params().size() == 2);
  for (const at::Tensor& t : local_params(adam.named_params())) t.mutable_grad() = at::ones_like(t);
  CHECK(adam.step([] { return at::scalar_tensor(3.0); }).item<double>() == 3);  // upstream drops it
  CHECK(adam.state().size() == 1 + own_ranks().size());
  adam.zero_grad();
  for (const at::Tensor& t : local_params(adam.named_params())) CHECK_FALSE(t.grad().defined());
  CHECK_THROWS_AS(adam.add_param_group(adam.param_groups()[0]), c10::NotImplementedError);
  CHECK_THAT(error_text([&] { adam.add_param_group(adam.param_groups()[0]); }),
             Contains("ShardedOptimizer add_param_group not implemented yet!"));
}

// A table and a dense parameter, trained on the same batches whole and sharded.
struct Pair {
  Pair(const ChunkShardingSpec& spec)
      : whole(table_of(13, 6).requires_grad_()),
        bias(at::zeros({6}, at::kDouble).requires_grad_()),
        sharded(shard_tensor(table_of(13, 6).requires_grad_(), spec, test_world())),
        own_bias(at::zeros({6}, at::kDouble).requires_grad_()) {
    plain_params.insert("table", whole);
    plain_params.insert("bias", bias);
    params.insert("table", sharded.tensor());
    params.insert("bias", own_bias);
  }
  // Of all ranks' batches; every process computes the bias's gradient of all of them.
  void backward(int64_t step) {
    const auto ids = ids_of_all({7}, 13, step);
    at::Tensor plain = at::zeros({}, at::kDouble), loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& t : ids) plain = plain + (at::embedding(whole, t) + bias).pow(2).sum();
    plain.backward();
    const auto rows = embedding(own(ids), sharded);
    for (const at::Tensor& r : rows) loss = loss + (r + own_bias.detach()).pow(2).sum();
    loss.backward();
    own_bias.mutable_grad() = bias.grad().clone();
  }
  template <typename O>
  void zero(O& plain, ShardedOptimizer<O>& optimizer) {
    plain.zero_grad();
    optimizer.zero_grad();
  }
  at::Tensor whole, bias;
  ShardedTensor sharded;
  at::Tensor own_bias;
  NamedParams plain_params, params;
};

template <typename O, typename Options>
void check_optimizer(const Options& options) {
  for (const auto& [dim, order] :
       std::vector<std::pair<int64_t, std::vector<int64_t>>>{{0, kAll}, {1, {2, 3, 0, 1}}, {0, {1}}}) {
    Pair p(chunks(dim, order));
    O plain(p.plain_params.values(), options);
    ShardedOptimizer<O> optimizer(p.params, options);
    for (int64_t step = 0; step < 3; ++step) {
      p.zero(plain, optimizer);
      p.backward(step);
      plain.step();
      optimizer.step();
    }
    CHECK(shards_are(p.sharded, p.whole.detach()));
    CHECK(at::allclose(p.own_bias, p.bias));

    // Half-way into another optimizer, whose table is cut otherwise.
    const NamedTensors state = optimizer.state_dict();
    Pair q(chunks(1 - dim, {3, 0, 1, 2}));
    {
      torch::NoGradGuard no_grad;
      q.whole.copy_(p.whole);
      q.bias.copy_(p.bias);
      q.own_bias.copy_(p.bias);
      copy_(q.sharded, p.sharded.resharded(q.sharded.sharding_spec()));
    }
    O other_plain(q.plain_params.values(), options);
    ShardedOptimizer<O> other(q.params, options);
    other.load_state_dict(state);
    p.zero(plain, optimizer);
    q.zero(other_plain, other);
    p.backward(9);
    q.backward(9);
    plain.step();
    other.step();
    CHECK(shards_are(q.sharded, p.whole.detach()));
    CHECK(at::allclose(q.own_bias, p.bias));
  }
}

TEST_CASE("SO-5: three steps of every optimizer, then one of another that has loaded its state") {
  check_optimizer<SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
  check_optimizer<SGD>(SGDOptions(0.05));
  check_optimizer<Adam>(AdamOptions(0.05).amsgrad(true));
  check_optimizer<AdamW>(AdamWOptions(0.05));
  check_optimizer<Adagrad>(AdagradOptions(0.05).lr_decay(0.1));
  check_optimizer<RMSprop>(RMSpropOptions(0.05).momentum(0.5).centered(true));
}

TEST_CASE("SO-4: contents of a state dict, and what it rejects before anything is changed") {
  Pair p(chunks(0, {2}));  // other ranks have no part of the table
  ShardedOptimizer<Adam> adam(p.params, AdamOptions(0.5));
  CHECK(adam.state_dict().count("state.table.exp_avg") == 0);
  p.backward(0);
  adam.step();
  const NamedTensors state = adam.state_dict();
  REQUIRE(state.count("state.table.exp_avg") == 1);
  CHECK(is_sharded(state.at("state.table.exp_avg")));
  CHECK_FALSE(is_sharded(state.at("state.bias.exp_avg")));
  CHECK(state.at("state.table.step").item<int64_t>() == 1);
  CHECK(state.at("param_groups.0.lr").item<double>() == 0.5);
  CHECK(shards_are(ShardedTensor(state.at("state.table.exp_avg")), p.whole.grad() * 0.1));

  const auto refused = [&](const std::string& name, const at::Tensor& value) {
    NamedTensors wrong = state;
    wrong["param_groups.0.lr"] = at::scalar_tensor(7.0);
    wrong[name] = value;
    const std::string text = error_text([&] { adam.load_state_dict(wrong); });
    CHECK(adam.param_groups()[0].options().get_lr() == 0.5);
    return text;
  };
  CHECK_THAT(refused("state.other.exp_avg", at::ones({2})), Contains("'state.other.exp_avg' is neither"));
  CHECK_THAT(refused("state.bias.exp_avg", at::ones({7})), Contains("has the shape [7], its parameter [6]"));
  CHECK_THAT(refused("state.table.exp_avg", at::ones({13, 6})), Contains("is plain, its parameter is not"));
  // What is loaded is the optimizer's own from then on.
  adam.load_state_dict(state);
  const at::Tensor loaded = adam.state_dict().at("state.bias.exp_avg");
  state.at("state.bias.exp_avg").fill_(9);
  for (const int64_t rank : own_ranks()) {
    const ShardedTensor table(state.at("state.table.exp_avg"));
    for (const Shard& shard : table.local_shards(rank)) shard.tensor.detach().fill_(9);
  }
  CHECK(at::equal(adam.state_dict().at("state.bias.exp_avg"), loaded));
  CHECK(shards_are(ShardedTensor(adam.state_dict().at("state.table.exp_avg")), p.whole.grad() * 0.1));
  // What is not said is forgotten.
  adam.load_state_dict({{"param_groups.0.lr", at::scalar_tensor(0.125)}});
  CHECK(adam.state().empty());
  CHECK(adam.param_groups()[0].options().get_lr() == 0.125);
}

}  // namespace
}  // namespace dtensor::sharded
