// Plain tensors and parameters that become sharded.
#include <torch/nn/modules/linear.h>

#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

using Numbers = std::vector<int64_t>;

TEST_CASE("SP-1 a parameter becomes sharded") {
  at::manual_seed(3);
  torch::nn::Linear fc(12, 12);
  const at::Tensor before = fc->weight.detach().clone();
  shard_parameter(*fc, "weight", chunks(0), test_world());
  REQUIRE(is_sharded(fc->weight));
  const ShardedTensor st(fc->weight);
  for (int64_t rank : test_world().owned_ranks()) {
    REQUIRE(st.local_shards(rank).size() == 1);
    CHECK(st.local_tensor(rank).sizes() == c10::IntArrayRef({3, 12}));
    CHECK(at::equal(st.local_tensor(rank).detach(), before.narrow(0, 3 * rank, 3)));
  }
  CHECK(is_sharded(fc->named_parameters()["weight"]));
  CHECK(fc->named_parameters()["weight"].is_same(fc->weight));
  CHECK(fc->weight.requires_grad());
  CHECK(fc->named_parameters().size() == 2);
  CHECK(at::equal(fc->bias, torch::nn::Linear(fc)->bias));
  fc->to(at::kDouble);  // the module moves it as it moves others
  REQUIRE(is_sharded(fc->weight));
  CHECK(holds(ShardedTensor(fc->weight), before.to(at::kDouble)));
  for (int64_t rank : test_world().owned_ranks()) {
    CHECK(ShardedTensor(fc->weight).local_tensor(rank).is_leaf());
    CHECK(ShardedTensor(fc->weight).local_tensor(rank).requires_grad());
  }
  CHECK_ERROR(c10::Error, "not supported for ShardedTensor!", fc->forward(at::ones({1, 12}, at::kDouble)));
}

TEST_CASE("SP-2 parameters that cannot be sharded") {
  torch::nn::Linear fc(10, 10);
  const ProcessGroup group = test_world();
  if (testing::is_job()) {
    const int64_t own = test_world().owned_ranks()[0];
    CHECK_ERROR(c10::ValueError, "src_rank=0 on rank: 0 does not match with src_rank=1 on rank: 1",
                shard_parameter(*fc, "weight", chunks(0), group, own));
    CHECK_ERROR(c10::ValueError,
                "does not match with sharding_spec=", shard_parameter(*fc, "weight", chunks(0, {own, 1, 2, 3}), group));
  }
  CHECK_ERROR(AttributeError, "LinearImpl has no attribute `foo`", shard_parameter(*fc, "foo", chunks(0), group));
  struct Outer : torch::nn::Module {
    Outer() { register_module("fc", torch::nn::Linear(2, 2)); }
  } outer;
  CHECK_ERROR(c10::ValueError, "fc to be a Tensor, but found", shard_parameter(outer, "fc", chunks(0), group));
  fc->bias.set_data(at::zeros({10, 10}).t());
  CHECK_ERROR(c10::ValueError, "param: bias is not a contiguous Tensor",
              shard_parameter(*fc, "bias", chunks(0), group));
  const EnumerableShardingSpec halves(
      {ShardMetadata({0, 0}, {5, 10}, place(0)), ShardMetadata({5, 0}, {5, 10}, place(1))});
  CHECK_ERROR(c10::NotImplementedError, "EnumerableShardingSpec.shard not implemented yet!",
              shard_parameter(*fc, "weight", halves, group));
  CHECK(!is_sharded(fc->weight));
  shard_parameter(*fc, "weight", chunks(0), group);
  CHECK_ERROR(c10::ValueError, "sharded already", shard_parameter(*fc, "weight", chunks(0), group));
}

TEST_CASE("SP-3 tensors, also with empty chunks (trap T6) and by columns") {
  for (const Numbers& size : {Numbers{12, 12}, Numbers{9, 12}, Numbers{2, 3}, Numbers{5, 3}, Numbers{0, 3}}) {
    for (int64_t dim : {0, 1}) {
      const ShardedTensor st = shard_tensor(counted(size), chunks(dim), test_world());
      CHECK(holds(st, counted(size)));
      CHECK(st.metadata() == chunks(dim).build_metadata(size, {}));
      for (int64_t rank : test_world().owned_ranks()) REQUIRE(st.local_shards(rank).size() == 1);
    }
  }
  const ShardedTensor nine = shard_tensor(counted({9, 12}), chunks(0), test_world());
  for (const ShardMetadata& md : nine.metadata().shards_metadata) CHECK(md.shard_offsets[0] + md.shard_sizes[0] <= 9);
  for (int64_t rank : test_world().owned_ranks())
    CHECK(nine.local_tensor(rank).sizes() == c10::IntArrayRef({rank < 3 ? 3 : 0, 12}));
  CHECK(holds(shard_tensor(counted({7, 3}), chunks(0, {2, 2, 1}), test_world()), counted({7, 3})));
  // A table on one rank.
  const ShardedTensor table = shard_tensor(counted({7, 3}), chunks(0, {2}), test_world());
  for (int64_t rank : test_world().owned_ranks()) CHECK(table.local_shards(rank).size() == (rank == 2 ? 1 : 0));
}

TEST_CASE("SP-4 tensors that cannot be sharded") {
  CHECK_ERROR(c10::ValueError, "input tensor is not a contiguous Tensor",
              shard_tensor(at::zeros({10, 10}).t(), chunks(0), test_world()));
  CHECK_ERROR(c10::NotImplementedError, "not implemented yet!",
              shard_tensor(at::zeros({10, 10}), grid(), test_world()));
  CHECK_ERROR(c10::ValueError, "src_rank=4 of a group of 4 ranks",
              shard_tensor(at::zeros({10, 10}), chunks(0), test_world(), 4));
  CHECK_ERROR(c10::ValueError, "Invalid sharding dim: 2", shard_tensor(at::zeros({10, 10}), chunks(2), test_world()));
  CHECK_ERROR(c10::ValueError, "undefined", shard_tensor(at::Tensor(), chunks(0), test_world()));
  if (!testing::is_job()) return;
  const int64_t own = test_world().owned_ranks()[0];
  CHECK_ERROR(c10::ValueError, "does not match with src_rank",
              shard_tensor(at::zeros({10, 10}), chunks(0), test_world(), own));
  CHECK_ERROR(c10::ValueError, "does not match with sharding_spec",
              shard_tensor(at::zeros({10, 10}), chunks(0, {own, 1, 2, 3}), test_world()));
  CHECK_ERROR(c10::ValueError, "does not match with size",
              shard_tensor(at::zeros({10 + own, 10}), chunks(0), test_world()));
  // Of one rank alone (trap T9).
  CHECK_ERROR(c10::ValueError, "rank 2: input tensor is not a contiguous Tensor",
              shard_tensor(owns(2) ? at::zeros({10, 10}).t() : at::zeros({10, 10}), chunks(0), test_world()));
}

TEST_CASE("SP-5 the values are those of the source rank") {
  const at::Tensor mine = owns(2) ? counted({10, 3}) : at::full({10, 3}, 77.f);
  CHECK(holds(shard_tensor(mine, chunks(0), test_world(), 2), counted({10, 3})));
}

TEST_CASE("SP-6 in a group") {
  const ProcessGroup group(test_world(), {2, 3});
  const at::Tensor mine = owns(3) ? counted({10, 3}) : at::full({10, 3}, 77.f);
  const ShardedTensor st = shard_tensor(mine, chunks(0, {3, 2}), group, /*src_rank=*/1);
  CHECK(holds(st, counted({10, 3})));
  for (int64_t rank : test_world().owned_ranks()) CHECK(st.local_shards(rank).size() == (rank < 2 ? 0 : 1));
}

TEST_CASE("SP-7 shards are leaves") {
  for (bool requires_grad : {true, false}) {
    const at::Tensor whole = at::rand({1, 3}).set_requires_grad(requires_grad);
    for (const ShardedTensor& st :
         {shard_tensor(whole, chunks(0), test_world()), shard_tensor(whole, chunks(0, {0}), test_world())}) {
      CHECK(st.requires_grad() == requires_grad);
      for (int64_t rank : test_world().owned_ranks()) {
        for (const Shard& shard : st.local_shards(rank)) {
          CHECK(shard.tensor.is_leaf());
          CHECK(shard.tensor.requires_grad() == requires_grad);
          CHECK(!shard.tensor.is_alias_of(whole));
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtensor::sharded
