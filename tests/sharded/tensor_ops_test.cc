// Operators that work shard by shard, and comparisons.
#include <c10/core/GradMode.h>
#include <torch/enum.h>
#include <torch/nn/init.h>

#include <cmath>

#include "sharded/sharded_tensor_state.h"
#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

// As in a program that is of no namespace of the library's, and uses ATen's.
namespace bare_names {
using namespace at;

void compare() {
  const auto a = dtensor::sharded::ones(dtensor::sharded::chunks(0), {10, 10}, dtensor::sharded::test_world());
  CHECK(equal(a, clone(a)));
  CHECK(allclose(a, clone(a)));
  CHECK(at::equal(a, clone(a)));
}
}  // namespace bare_names

namespace dtensor::sharded {
namespace {

TEST_CASE("unqualified comparisons, next to those of ATen") { bare_names::compare(); }

ShardedTensor some(int64_t seed = 1, const ShardedTensorOptions& options = {}) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return rand(chunks(0), {10, 10}, test_world(), options);
}

// OP-5 is a row of the operators; the built-in functions are tested here.
TEST_CASE("OP-5 equal and allclose, the same answer on every rank") {
  const ShardedTensor a = some();
  CHECK(sharded::equal(a, clone(a)));
  CHECK(a.tensor().equal(clone(a)));
  CHECK(sharded::allclose(a, clone(a), 1e-5, 0));
  const ShardedTensor differs = clone(a);
  if (owns(2)) differs.local_shards(2)[0].tensor.add_(1e-3);
  CHECK_FALSE(sharded::equal(a, differs));
  CHECK_FALSE(sharded::allclose(a, differs));
  CHECK(sharded::allclose(a, differs, 0, 1e-2));
  CHECK_FALSE(sharded::allclose(a, differs, 0, 1e-4));
  const ShardedTensor large = full(chunks(0), {10, 10}, 100., test_world()), near = clone(large);
  if (owns(1)) near.local_shards(1)[0].tensor.add_(1);
  CHECK(sharded::allclose(large, near, 0.1, 0));
  CHECK_FALSE(sharded::allclose(large, near, 1e-3, 0));
  const ShardedTensor nans = full(chunks(0), {10, 10}, std::nan(""), test_world());
  CHECK_FALSE(sharded::allclose(nans, clone(nans)));
  CHECK(sharded::allclose(nans, clone(nans), 1e-5, 1e-8, /*equal_nan=*/true));
  CHECK_FALSE(sharded::allclose(some(1), some(2)));
  CHECK(sharded::allclose(some(1), some(2), 0, 1));
  CHECK_FALSE(sharded::equal(ones(chunks(0), {10, 10}, test_world()), ones(chunks(0), {10, 5}, test_world())));
  CHECK_FALSE(
      sharded::equal(ones(chunks(0), {8, 8}, test_world()), ones(chunks(0, {1, 0, 2, 3}), {8, 8}, test_world())));
  CHECK_FALSE(sharded::equal(ones(chunks(0), {8, 8}, test_world()), zeros(chunks(0), {8, 8}, test_world())));
  CHECK_FALSE(sharded::equal(ones(chunks(0), {8, 8}, test_world()),
                             ones(chunks(0), {8, 8}, test_world(), {.dtype = at::kDouble})));
  CHECK_FALSE(sharded::equal(some(), some(1, {.requires_grad = true})));
  CHECK_FALSE(sharded::allclose(some(), some(1, {.requires_grad = true})));
  CHECK_ERROR(c10::TypeError, "Both arguments to torch.equal need to be of type ShardedTensor",
              sharded::equal(a, at::zeros({10, 10})));
  const ShardedTensor in_other = ones(chunks(0), {10, 10}, ProcessGroup(test_world(), {0, 1, 2, 3}, "other"));
  CHECK_ERROR(c10::Error, "All distributed tensors should use the same ProcessGroup", sharded::equal(a, in_other));
  const ProcessGroup inner(test_world(), {1, 2});
  CHECK(sharded::equal(ones(chunks(0, {1, 2}), {4, 4}, inner), ones(chunks(0, {1, 2}), {4, 4}, inner)));
}

TEST_CASE("a deep copy is a leaf of its own, with its gradient") {
  const ShardedTensor a = some(1, {.requires_grad = true});
  for (const int64_t rank : test_world().owned_ranks()) {
    const at::Tensor shard = a.local_tensor(rank);
    shard.mutable_grad() = at::full_like(shard.detach(), 3);
  }
  const ShardedTensor copy = deepcopy(a);
  CHECK(copy.requires_grad());
  for (const int64_t rank : test_world().owned_ranks()) {
    const at::Tensor shard = copy.local_tensor(rank);
    CHECK(shard.requires_grad());
    CHECK(shard.is_leaf());
    CHECK(at::equal(shard.grad(), a.local_tensor(rank).grad()));
    CHECK_FALSE(shard.grad().is_alias_of(a.local_tensor(rank).grad()));
    CHECK_FALSE(shard.is_alias_of(a.local_tensor(rank)));
  }
  CHECK_FALSE(deepcopy(some()).local_tensor(test_world().owned_ranks()[0]).requires_grad());
}

// Each rank's shard gets what a plain tensor of its size would, in the order in which a process has its ranks.
template <typename Init, typename Plain>
void check_init(Init init, Plain plain) {
  const ShardedTensor st = empty(chunks(0), {8, 2}, test_world(), {.dtype = at::kDouble, .requires_grad = true});
  at::manual_seed(1234);
  CHECK(init(st).is_same(st));
  at::manual_seed(1234);
  for (int64_t rank : test_world().owned_ranks()) {
    const at::Tensor t = at::empty({2, 2}, at::kDouble);
    plain(t);
    CHECK(at::equal(st.local_tensor(rank).detach(), t));
    CHECK(st.local_tensor(rank).is_leaf());
  }
}

TEST_CASE("OP-6 initial values") {
  check_init([](const ShardedTensor& st) { return uniform_(st, 10, 20); }, [](at::Tensor t) { t.uniform_(10, 20); });
  check_init([](const ShardedTensor& st) { return normal_(st, 10, 5); }, [](at::Tensor t) { t.normal_(10, 5); });
  check_init([](const ShardedTensor& st) { return constant_(st, 3); }, [](at::Tensor t) { t.fill_(3); });
  check_init([](const ShardedTensor& st) { return kaiming_uniform_(st); },
             [](const at::Tensor& t) { torch::nn::init::kaiming_uniform_(t, 0, torch::kFanIn, torch::kLeakyReLU); });
  CHECK_ERROR(c10::ValueError, "Unsupported nonlinearity", kaiming_uniform_(some(), 0, FanMode::kFanOut, "gelu2"));
}

TEST_CASE("OP-7 copies, detached ones, flags and types") {
  const ShardedTensor st = rand(chunks(0), {12, 5}, test_world(), {.requires_grad = true});
  for (const ShardedTensor& copy : {clone(st), deepcopy(st), ShardedTensor(st.tensor().clone())}) {
    CHECK(!copy.is_same(st));
    CHECK(copy.metadata() == st.metadata());
    CHECK(copy.sharding_spec() == st.sharding_spec());
    for (int64_t rank : test_world().owned_ranks()) {
      CHECK(at::equal(copy.local_tensor(rank), st.local_tensor(rank)));
      CHECK(!copy.local_tensor(rank).is_alias_of(st.local_tensor(rank)));
    }
  }
  for (int64_t rank : test_world().owned_ranks()) CHECK(deepcopy(st).local_tensor(rank).is_leaf());
  CHECK_ERROR(c10::Error, "Only support torch.preserve_format for ShardedTensor!",
              clone(st, c10::MemoryFormat::Contiguous));

  const ShardedTensor other = rand(chunks(0), {12, 5}, test_world());
  CHECK_FALSE(sharded::equal(other, detach(st)));
  {
    c10::AutoGradMode no_grad(false);
    copy_(other, st);
    CHECK(sharded::equal(other, detach(st)));
    copy_(st, other);
    CHECK(st.requires_grad());
  }
  CHECK_ERROR(c10::Error, "inplace copy can only happen between two ShardedTensor with same metadata!",
              copy_(other, rand(chunks(1), {12, 5}, test_world())));

  for (const ShardedTensor& free : {detach(st), ShardedTensor(st.tensor().detach())}) {
    CHECK(!free.requires_grad());
    for (int64_t rank : test_world().owned_ranks()) {
      CHECK(!free.local_tensor(rank).requires_grad());
      CHECK(free.local_tensor(rank).is_alias_of(st.local_tensor(rank)));
    }
    CHECK(requires_grad_(free).is_same(free));
    CHECK(free.requires_grad());
    CHECK(free.tensor().requires_grad());
    for (int64_t rank : test_world().owned_ranks()) CHECK(free.local_tensor(rank).requires_grad());
  }
  CHECK(type_as(other, at::zeros({1})).is_same(other));
  const ShardedTensor as_double = type_as(other, at::zeros({1}, at::kDouble));
  CHECK(as_double.dtype() == at::kDouble);
  for (int64_t rank : test_world().owned_ranks()) CHECK(as_double.local_tensor(rank).scalar_type() == at::kDouble);
  CHECK_ERROR(c10::ValueError, "Needs to give a Tensor or ShardedTensor to cast type as!",
              type_as(other, at::Tensor()));
}

}  // namespace
}  // namespace dtensor::sharded
