// Handlers of operators on sharded tensors, and their order.
#include "sharded/op_registry.h"

#include <ATen/ATen.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "plan/spec.h"
#include "sharded/dtensor_bridge.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/errors.h"
#include "sharded/factories.h"
#include "sharded/tensor_ops.h"
#include "tests/sharded/lookup_cases.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::sharded {
namespace {

using Catch::Contains;
using testing::error_text;

ShardedTensor some() { return rand(chunks(0, kAll), {10, 10}, test_world()); }

// A handler that gives a number.
OpHandler gives(int64_t number) {
  return [number](const OpTypes&, const OpArguments&, const OpKeywords&, const ProcessGroup&) {
    return c10::IValue(at::scalar_tensor(number));
  };
}
int64_t number(const at::Tensor& t) { return t.item<int64_t>(); }

c10::IValue own_asin(const OpTypes& types, const OpArguments&, const OpKeywords&, const ProcessGroup& group) {
  return c10::IValue(at::asin(types[0].local_tensor(group.owned_ranks()[0])));
}

TEST_CASE(
    "OP-1: the user's handler comes before the spec's, that before the built-in one, and then there is an error") {
  const ShardedTensor st = some();
  CHECK_THAT(error_text([&] { at::asin(st); }),
             Contains("torch function 'asin', with args: (ShardedTensor[10, 10]) and kwargs: {} not supported for "
                      "ShardedTensor!"));
  CHECK_THAT(error_text([&] { at::add(st, at::ones({10, 10})); }), Contains("not supported for ShardedTensor!"));
  {
    ScopedOp of_spec(SpecClass(typeid(ChunkShardingSpec)), "clone", gives(1));
    CHECK(number(at::clone(st)) == 1);
    {
      ScopedOp of_user("clone", gives(2));
      CHECK(number(at::clone(st)) == 2);
    }
    CHECK(number(at::clone(st)) == 1);
    const ShardedTensor boxes =
        ones(EnumerableShardingSpec({ShardMetadata({0}, {4}, "rank:0/cpu")}), {4}, test_world());
    CHECK(is_sharded(at::clone(boxes)));  // another class of specs
    CHECK_THAT(error_text([&] { spec_op(st.sharding_spec(), "asin"); }),
               Contains("Custom op: asin not registered for ChunkShardingSpec"));
    CHECK(spec_op(st.sharding_spec(), "clone") != nullptr);
  }
  CHECK(sharded::equal(at::clone(st), st));
  const at::Tensor ids = at::arange(3);
  CHECK(at::embedding(st, ids).sizes() == c10::IntArrayRef({3, 10}));  // built in
  {
    ScopedOp of_spec(SpecClass(typeid(ChunkShardingSpec)), "embedding", gives(1));
    CHECK(number(at::embedding(st, ids)) == 1);
    ScopedOp of_user("embedding", gives(2));
    CHECK(number(at::embedding(st, ids)) == 2);
  }
  CHECK(at::embedding(st, ids).sizes() == c10::IntArrayRef({3, 10}));
}

TEST_CASE(
    "OP-1: T16: a registration ends at the end of its block, or on request, and the previous handler is restored") {
  const ShardedTensor st = some();
  register_custom_op("asin", gives(1));
  register_custom_op("asin", gives(2));  // takes its place
  CHECK(number(at::asin(st)) == 2);
  {
    ScopedOp other("asin", gives(3));
    CHECK(number(at::asin(st)) == 3);
  }
  CHECK(number(at::asin(st)) == 2);
  CHECK(unregister_custom_op("asin"));
  CHECK_FALSE(unregister_custom_op("asin"));
  CHECK_THROWS_AS(at::asin(st), c10::Error);
  register_spec_op<ChunkShardingSpec>("asin", gives(4));
  CHECK(number(at::asin(st)) == 4);
  CHECK(unregister_spec_op<ChunkShardingSpec>("asin"));
  CHECK_FALSE(has_op("asin", st.sharding_spec()));
}

TEST_CASE("OP-2: a custom asin of the first shard") {
  const ShardedTensor st = some();
  ScopedOp asin("asin", own_asin);
  CHECK(at::equal(at::asin(st), at::asin(st.local_tensor(own_ranks()[0]))));
  CHECK(at::equal(st.tensor().asin(), at::asin(st)));
}

TEST_CASE("OP-2: a Linear runs linear overridden for chunk specs") {
  // torch::nn::Linear transposes and multiplies; the operator is at::linear.
  struct Linear : torch::nn::LinearImpl {
    using torch::nn::LinearImpl::LinearImpl;
    at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  };
  const auto fc = std::make_shared<Linear>(32, 16);
  shard_parameter(*fc, "weight", chunks(0, kAll), test_world());
  const at::Tensor fixed = at::rand({10, 10}), input = at::rand({15, 32});
  CHECK_THROWS_AS(fc->forward(input), c10::Error);
  ScopedOp linear(SpecClass(typeid(ChunkShardingSpec)), "linear",
                  [&](const OpTypes&, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
                    CHECK(args.at(0).toTensor().is_same(input));
                    return c10::IValue(fixed);
                  });
  CHECK(fc->forward(input).is_same(fixed));
}

TEST_CASE("OP-2: an operator that runs on DTensors in a few lines") {
  // What upstream removed from this layer: a column-parallel linear.
  ScopedOp linear(SpecClass(typeid(ChunkShardingSpec)), "linear",
                  [](const OpTypes& types, const OpArguments& args, const OpKeywords&, const ProcessGroup&) {
                    const DTensor weight(to_dtensor(types[0]));
                    const at::Tensor input = distribute_tensor(args[0].toTensor(), weight.mesh());
                    return c10::IValue(from_dtensor(input.matmul(weight.tensor().t())).tensor());
                  });
  const at::Tensor weight = table_of(12, 6).requires_grad_(), input = table_of(5, 6);
  const ShardedTensor st = shard_tensor(weight, chunks(0, kAll), test_world());
  const ShardedTensor out(at::linear(input, st));
  CHECK(out.sizes() == c10::IntArrayRef({5, 12}));
  CHECK(shards_are(out, input.matmul(weight.detach().t())));
}

TEST_CASE("OP-3: handlers of another signature do not compile, or are rejected at registration") {
  const auto five = [](const OpTypes&, const OpArguments&, const OpKeywords&, const ProcessGroup&, int) {
    return c10::IValue();
  };
  const auto one = [](const OpTypes&) { return c10::IValue(); };
  static_assert(!is_op_handler<decltype(five)>);
  static_assert(!is_op_handler<decltype(one)>);
  static_assert(is_op_handler<decltype(&own_asin)>);
  for (const std::any& wrong : {std::any(five), std::any(one), std::any(), std::any(OpHandler())}) {
    CHECK_THROWS_AS(register_custom_op("asin", wrong), c10::TypeError);
    CHECK_THAT(error_text([&] { register_custom_op("asin", wrong); }),
               Contains("expects signature: (types, args, kwargs, process_group), but received signature"));
  }
  const ShardedTensor st = some();
  CHECK_THROWS_AS(at::asin(st), c10::Error);  // none of them is there
  for (const std::any& right : {std::any(&own_asin), std::any(OpHandler(own_asin))}) {
    register_custom_op("asin", right);
    CHECK(at::asin(st).defined());
    CHECK(unregister_custom_op("asin"));
  }
}

TEST_CASE("OP-4: calls without input, without a sharded tensor, of several groups") {
  ScopedOp any("mylib::mine", gives(7));
  const ShardedTensor st = some();
  CHECK(number(call_sharded_op("mylib::mine", {st.tensor()}).toTensor()) == 7);
  CHECK(number(call_sharded_op("mylib::mine", {1}, {{"weight", st.tensor()}}).toTensor()) == 7);
  CHECK(number(call_sharded_op("mylib::mine", {c10::List<at::Tensor>({at::ones({1}), st.tensor()})}).toTensor()) == 7);
  CHECK_THROWS_AS(call_sharded_op("mylib::mine", {}), c10::ValueError);
  CHECK(error_text([] { call_sharded_op("mylib::mine", {}); }) == " No input for 'mylib::mine'!");
  CHECK_THROWS_AS(call_sharded_op("mylib::mine", {at::ones({2})}), c10::TypeError);
  CHECK_THAT(error_text([] {
               call_sharded_op("mylib::mine", {at::ones({2}), 3});
             }),
             Contains("with args: (Tensor[2], 3)") && Contains("are called without any distributed tensor!"));
  const ProcessGroup others(test_world(), kAll, "others");
  const ShardedTensor elsewhere = ones(chunks(0, kAll), {10, 10}, others);
  CHECK_THAT(error_text([&] {
               call_sharded_op("mylib::mine", {st.tensor(), elsewhere.tensor()});
             }),
             Contains("All distributed tensors should use the same ProcessGroup if used together in an op."));
}

TEST_CASE("torch::nn modules whose table is sharded look up for the process's first rank") {
  for (const int64_t dim : {0, 1}) {
    torch::manual_seed(3);
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(11, 6).padding_idx(2)),
        limited(torch::nn::EmbeddingOptions(11, 6).max_norm(0.5)),
        plain_limited(torch::nn::EmbeddingOptions(11, 6).max_norm(0.5));
    torch::nn::EmbeddingBag bag(torch::nn::EmbeddingBagOptions(11, 6).mode(torch::kMean).padding_idx(4)),
        plain_bag(11, 6);
    const at::Tensor whole = at::rand({11, 6});
    for (auto* m : {&table, &limited, &plain_limited}) (*m)->weight.set_data(whole.clone());
    bag->weight.set_data(whole.clone());
    for (torch::nn::Module* m : {static_cast<torch::nn::Module*>(&*table), static_cast<torch::nn::Module*>(&*limited),
                                 static_cast<torch::nn::Module*>(&*bag)}) {
      shard_parameter(*m, "weight", chunks(dim, {3, 1, 0, 2}), test_world());
    }
    const at::Tensor ids = at::tensor({1, 4, 2, 10, 0, 4}, at::kLong).view({2, 3});
    CHECK(at::allclose(table(ids), at::embedding(whole, ids)));
    CHECK(at::allclose(limited(ids), plain_limited(ids)));
    const at::Tensor offsets = at::tensor({0, 3}, at::kLong);
    const auto expected = at::embedding_bag(whole, ids.view(-1), offsets, false, 1, false, {}, false, 4);
    CHECK(at::allclose(bag(ids), std::get<0>(expected)));
    CHECK(at::allclose(bag(ids.view(-1), offsets), std::get<0>(expected)));
  }
}

}  // namespace
}  // namespace dtensor::sharded
