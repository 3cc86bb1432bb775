// Changing the size or memory of an existing tensor: resize_() and set_(), defined on the whole tensor.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

const std::vector<std::vector<int64_t>> kSizes = {{6, 5}, {5, 6}, {3, 5}, {2}, {8, 5}, {0}, {40}, {2, 3, 10}, {}};

TEST_CASE("resize_() keeps the elements in their order", "[ops][resize]") {
  const at::Tensor x = at::arange(30, at::kDouble).view({6, 5});
  for (const DeviceMesh& mesh : test_meshes()) {
    for (const Placement& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
      for (const auto& sizes : kSizes) {
        for (const bool transposed : {false, true}) {
          const Placements placements(mesh.ndim(), p);
          CAPTURE(mesh.to_string(), to_string(placements), sizes, transposed);
          at::Tensor plain = x.clone(), d = lay_out(x, mesh, placements);
          if (transposed) plain.t_(), d.t_();
          CHECK(d.resize_(sizes).is_same(d));
          plain.resize_(sizes);
          REQUIRE(d.sizes() == plain.sizes());
          CHECK(d.strides() == plain.strides());
          const int64_t kept = std::min<int64_t>(30, plain.numel());
          CHECK(at::allclose(full_tensor(d).reshape({-1}).narrow(0, 0, kept), plain.reshape({-1}).narrow(0, 0, kept)));
          CHECK(full_tensor(d).reshape({-1}).slice(0, kept).eq(0).all().item<bool>());
          CHECK((d + 1).sizes() == plain.sizes());
        }
      }
    }
  }
}

TEST_CASE("resize_() to fewer elements shares memory, to more keeps the layout", "[ops][resize]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const at::Tensor d = lay_out(at::zeros({6, 5}, at::kDouble), mesh, {Shard(0)}), view = d.view({6, 5});
  d.resize_({3, 5});
  d.fill_(1);
  CHECK(full_tensor(view).sum().item<double>() == 15);
  d.resize_({12, 5});
  CHECK(DTensor(d).placements() == Placements{Shard(0)});
  CHECK(DTensor(d).local(0).sizes() == at::IntArrayRef({4, 5}));
  const at::Tensor like = lay_out(at::zeros({7, 2}, at::kDouble), mesh, {Shard(0)});
  CHECK(d.resize_as_(like).sizes() == at::IntArrayRef({7, 2}));
}

TEST_CASE("resize_() that is not possible is an error with the reason", "[ops][resize]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const at::Tensor d = lay_out(at::zeros({6, 5}, at::kDouble), mesh, {Shard(0)});
  CHECK_THROWS_WITH(d.slice(1, 0, 3).resize_({2}), Catch::Contains("a view with gaps"));
  CHECK_THROWS_WITH(d.resize_({2, -1}), Catch::Contains("must not be negative"));
  CHECK_THROWS_WITH(d.resize_({1, 2, 3, 5}, at::MemoryFormat::ChannelsLast), Catch::Contains("memory_format"));
  CHECK(d.sizes() == at::IntArrayRef({6, 5}));
}

TEST_CASE("set_() shares the memory of another distributed tensor", "[ops][resize]") {
  const DeviceMesh mesh(World::local(3), {3}, {"x"});
  const at::Tensor x = at::rand({6, 5}, at::kDouble), source = lay_out(x, mesh, {Shard(1)});
  at::Tensor d = lay_out(at::zeros({2}, at::kDouble), mesh, {Replicate()});
  CHECK(d.set_(source).is_same(d));
  CHECK(DTensor(d).placements() == Placements{Shard(1)});
  CHECK(at::equal(full_tensor(d), x));
  d.add_(1);
  CHECK(at::equal(full_tensor(source), x + 1));
  d.set_();
  CHECK(d.sizes() == at::IntArrayRef({0}));
  CHECK(at::equal(full_tensor(source), x + 1));
  CHECK_THROWS_WITH(d.set_(at::zeros({2}, at::kDouble)), Catch::Contains("a plain tensor of shape [2]"));
  CHECK_THROWS_WITH(d.set_(source.to(at::kFloat)), Catch::Contains("dtype"));
  CHECK_THROWS(d.set_(x.storage()));
}

}  // namespace
}  // namespace dtensor::testing
