// Tensor::set_data() of a distributed tensor that an operator made, which holds its metadata itself, and of parameters,
// whose TensorImpl is LibTorch's.
#include <ATen/ops/equal.h>
#include <torch/types.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/local_guard.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

struct Fixture {
  DeviceMesh mesh{World::local(2), {2}, {"x"}};
  Tensor given = torch::randn({6, 4}, torch::kDouble), other = torch::randn({8}, torch::kDouble);
  Tensor sharded(const Tensor& t) const { return distribute_tensor(t, mesh, {Shard(0)}); }
  int64_t live_bytes() const { return mesh.world().memory().live_bytes(); }
};

void check_is(const Tensor& t, const Tensor& expected) {
  CHECK(t.sizes() == expected.sizes());
  CHECK(DTensor(t).placements() == Placements{Shard(0)});
  CHECK(at::equal(full_tensor(t), expected));
  CHECK(at::equal(full_tensor(t * 2), expected * 2));
}

}  // namespace

TEST_CASE("set_data: an operator's result takes another one's contents, and drops its own", "[dtensor][set_data]") {
  const Fixture f;
  const Tensor from = f.sharded(f.other) * 1;
  const int64_t bytes = f.live_bytes();
  {
    const Tensor result = f.sharded(f.given) + 0;
    result.set_data(from);
    check_is(result, f.other);
    CHECK(f.live_bytes() == bytes);
    result.set_data(f.sharded(f.given));  // a second time
    check_is(result, f.given);
    result.zero_();
    check_is(from, f.other);
  }
  CHECK(f.live_bytes() == bytes);
}

TEST_CASE("set_data: with the tensor itself or a handle of it, nothing changes", "[dtensor][set_data]") {
  const Fixture f;
  const Tensor result = f.sharded(f.given) + 0;
  result.set_data(result);
  check_is(result, f.given);
  result.set_data(result.detach());
  check_is(result, f.given);
  result.set_data(result.data());
  check_is(result, f.given);
}

TEST_CASE("set_data: handles of a result outlive it", "[dtensor][set_data]") {
  const Fixture f;
  Tensor result = f.sharded(f.given) + 0;
  Tensor plain = torch::ones({3}, torch::kDouble).requires_grad_();
  plain.set_data(result);
  const Tensor data = result.data(), detached = result.detach(), variable = result.variable_data();
  result.set_data(f.sharded(f.other));
  result = Tensor();
  for (const Tensor& t : {plain.detach(), data, detached, variable}) check_is(t, f.given);
  plain.set_data(f.sharded(f.other) * 1);
  check_is(plain.detach(), f.other);
}

TEST_CASE("set_data: errors about data name what was assigned", "[dtensor][set_data]") {
  const Fixture f;
  const Tensor result = f.sharded(f.given) + 0;
  CHECK_THROWS_WITH(result.data_ptr(), Catch::Contains("full_tensor(t)"));  // makes the text
  result.set_data(f.sharded(f.other) * 1);                                  // which has no text yet
  check_is(result, f.other);
  CHECK_THROWS_WITH(result.data_ptr(), Catch::Contains("full_tensor(t)"));
}

TEST_CASE("set_data: the library may make a result plain for a while", "[dtensor][set_data]") {
  const Fixture f;
  const Tensor result = f.sharded(f.given) + 0, handle = result.detach();
  {
    const internal::LocalGuard guard;  // as while it saves and loads
    result.set_data(f.other);
    CHECK(result.data_ptr() == f.other.data_ptr());
    CHECK(at::equal(result * 2, f.other * 2));
    result.set_data(handle);
  }
  check_is(result, f.given);
  CHECK_THROWS_WITH(result.data_ptr(), Catch::Contains("full_tensor(t)"));
}

TEST_CASE("keep_module_traits: traits of a cast are dropped, also if the source has none", "[dtensor][set_data]") {
  const Fixture f;
  const Tensor from = f.sharded(f.given) + 0, to = f.sharded(f.given) + 0;
  internal::change_module_traits(to, [&](internal::ModuleTraits& traits) {
    traits.cast_of = internal::CastOf{internal::meta_without_sync(from).storage, 0, 0, nullptr};
  });
  internal::keep_module_traits(from, to);  // `from` has no traits
  CHECK_FALSE(internal::meta_without_sync(to).storage->parameter->traits);
}

}  // namespace dtensor
