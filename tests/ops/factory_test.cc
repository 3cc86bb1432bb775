// Tensors made from the example of another.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>

#include "dtensor/dispatch.h"
#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;

TEST_CASE("Tensors like another", "[factory]") {
  struct Row {
    const char* name;
    std::function<at::Tensor(const at::Tensor&)> fn;
  };
  const Row table[] = {
      {"zeros_like", [](const at::Tensor& t) { return at::zeros_like(t); }},
      {"zeros_like int", [](const at::Tensor& t) { return at::zeros_like(t, t.options().dtype(at::kInt)); }},
      {"ones_like", [](const at::Tensor& t) { return at::ones_like(t); }},
      {"full_like", [](const at::Tensor& t) { return at::full_like(t, 7.5); }},
      {"new_zeros same", [](const at::Tensor& t) { return t.new_zeros(t.sizes()); }},
      {"new_zeros other",
       [](const at::Tensor& t) {
         return t.new_zeros({3, 2});
       }},
      {"new_ones number", [](const at::Tensor& t) { return t.new_ones({}); }},
      {"new_full",
       [](const at::Tensor& t) {
         return t.new_full({5, 6}, 2, at::kLong);
       }},
      {"new_empty",
       [](const at::Tensor& t) {
         return t.new_empty({5, 6}).fill_(1);
       }},
      {"new_empty_strided",
       [](const at::Tensor& t) {
         return t.new_empty_strided({5, 6}, {1, 5}).fill_(1);
       }},
      {"of a transposed", [](const at::Tensor& t) { return at::ones_like(t.t()); }},
  };
  for (const auto& row : table) {
    OpCase c{row.name, [fn = row.fn](const Tensors& t) { return Tensors{fn(t[0])}; }, {{5, 6}}};
    c.silent = [](const auto&) { return true; };
    c.strided_inputs = true;
    c.more_partials = {ReduceOp::kMax};
    DYNAMIC_SECTION(row.name) { check_op(c, 30); }
  }
}

TEST_CASE("Their layout follows the example", "[factory]") {
  const auto mesh = test_meshes()[1];
  const auto x = lay_out(at::rand({5, 6}, at::kDouble), mesh, {Shard(1), Partial()});
  CHECK(meta_of(at::zeros_like(x)).spec->placements() == Placements{Shard(1), Replicate()});
  CHECK(meta_of(x.new_zeros({5, 6})).spec->placements() == Placements{Shard(1), Replicate()});
  CHECK(meta_of(x.new_zeros({6, 5})).spec->placements() == Placements{Replicate(), Replicate()});
  const auto t = x.new_empty_strided({5, 6}, {1, 5});
  CHECK(t.strides() == at::IntArrayRef({1, 5}));
  CHECK(meta_of(t).locals[0].strides() == at::IntArrayRef({1, 5}));
  CHECK_THROWS_WITH(at::zeros_like(x, x.options().device(c10::DeviceType::Meta)), Catch::Contains("cannot be made on"));
}

TEST_CASE("The value of full_like misses no cache", "[factory]") {
  const auto mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({5, 6}, at::kDouble), mesh, {Shard(0)});
  at::full_like(x, 1.5);
  const auto before = strategy_cache(mesh.world()).stats().misses;
  CHECK(difference(at::full_like(x, 2.5), at::full({5, 6}, 2.5, at::kDouble)) == std::nullopt);
  CHECK(strategy_cache(mesh.world()).stats().misses == before);
}

}  // namespace dtensor::testing
