// Parts have the order of dims in memory that the strides of their tensor have, however they came to be: so that every
// rank can take the same views of its own.
#include "tests/testing/part_order.h"

#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/pad.h>
#include <torch/types.h>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

// 5 x 4 x 6, of which the second dim is the innermost in memory.
Tensor permuted_values() { return torch::arange(120, torch::kDouble).view({6, 5, 4}).permute({1, 2, 0}); }

Tensor with_permuted_dims(const DeviceMesh& mesh, const Placements& placements) {
  // A view would be its base in other strides: this is a tensor of its own.
  const Tensor t = distribute_tensor(torch::arange(120, torch::kDouble).view({6, 5, 4}), mesh).permute({1, 2, 0}) + 0;
  return redistribute(t, placements);
}

void check_order(const Tensor& t, const Tensor& plain) {
  const DTensorMeta& meta = meta_for_read(t);
  INFO(meta.spec->to_string() << " of strides " << t.strides());
  CHECK(t.strides() == plain.strides());
  for (const Tensor& part : meta.locals) {
    INFO(part.sizes() << " in strides " << part.strides());
    CHECK(testing::is_in_order(part, *meta.spec));
  }
  CHECK(torch::equal(full_tensor(t), plain));
}

const std::vector<Placements>& permuted_layouts() {
  static const std::vector<Placements> all = {{Shard(0)}, {Shard(1)}, {Shard(2)}, {Replicate()}};
  return all;
}

TEST_CASE("part order: redistribute() to every layout, also asynchronously") {
  const DeviceMesh mesh(World::local(4), {4});
  const Tensor plain = permuted_values().clone();
  for (const Placements& from : permuted_layouts()) {
    for (const Placements& to : permuted_layouts()) {
      const Tensor t = with_permuted_dims(mesh, from);
      check_order(t, plain);
      check_order(redistribute(t, to), plain);
      check_order(redistribute(t, to, {.async_op = true}), plain);
      check_order(redistribute(redistribute(t, {Partial()}), to), plain);
    }
  }
}

TEST_CASE("part order: results of operators that move or exchange parts") {
  const DeviceMesh mesh(World::local(4), {4});
  const Tensor plain = permuted_values().clone();
  for (const Placements& layout : permuted_layouts()) {
    const Tensor t = with_permuted_dims(mesh, layout);
    check_order(t.cumsum(0), plain.cumsum(0));
    check_order(t.roll({2, 1}, {0, 2}), plain.roll({2, 1}, {0, 2}));
    check_order(at::pad(t, {1, 2, 0, 0, 2, 1}), at::pad(plain, {1, 2, 0, 0, 2, 1}));
    const Tensor index = torch::tensor({4, 0, 3});
    check_order(t.index_select(0, distribute_tensor(index, mesh, {Replicate()})), plain.index_select(0, index));
    check_order(t.where(t > 7, plain[0][0][0].item()), plain.where(plain > 7, plain[0][0][0].item()));
  }
}

TEST_CASE("part order: a slice of a sharded dim that moves rows, and what is computed from it") {
  const DeviceMesh mesh(World::local(4), {4});
  const Tensor plain = permuted_values().clone();
  for (const Placements& layout : permuted_layouts()) {
    const Tensor t = with_permuted_dims(mesh, layout);
    for (int64_t d = 0; d < 3; ++d) {
      check_order(t.slice(d, 1, 4).sin(), plain.slice(d, 1, 4).sin());
      check_order(t.slice(d, 1, 4).transpose(0, 1).cos(), plain.slice(d, 1, 4).transpose(0, 1).cos());
    }
  }
}

TEST_CASE("part order: results that a kernel pads have no gaps") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor a = torch::rand({4, 5, 3}, torch::kDouble), b = torch::rand({4, 5, 2}, torch::kDouble);
  const Tensor x =
      std::get<0>(at::linalg_lstsq(distribute_tensor(a, mesh, {Shard(0)}), distribute_tensor(b, mesh, {Shard(0)})));
  for (const Tensor& part : meta_for_read(x).locals) CHECK(testing::is_in_order(part, *spec_of(x)));
  CHECK(torch::allclose(full_tensor(x), std::get<0>(at::linalg_lstsq(a, b))));
}

// Two parts of 2 x 3 that are column-major, and a tensor that is said to be row-major.
Tensor of_column_major_parts(const DeviceMesh& mesh, torch::ScalarType dtype) {
  const std::vector<Tensor> parts = {torch::rand({3, 2}, dtype).t(), torch::rand({3, 2}, dtype).t()};
  return from_local(parts, mesh, {Shard(0)}, {.strides = std::vector<int64_t>{3, 1}});
}

TEST_CASE("part order: results of parts in another order, of the first call and of later ones") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor t = of_column_major_parts(mesh, torch::kDouble), plain = full_tensor(t).contiguous();
  for (int call = 0; call < 3; ++call) {
    check_order(t.relu(), plain.relu());
    check_order(t + t, plain + plain);
    check_order(at::_foreach_add({t, t}, 1)[1], plain + 1);
  }
  const Tensor c = of_column_major_parts(mesh, torch::kComplexDouble), of_c = full_tensor(c).contiguous();
  check_order(c.conj().clone(), of_c.conj().clone());
}

TEST_CASE("part order: gradients of a permuted leaf") {
  const DeviceMesh mesh(World::local(4), {4});
  const Tensor plain = permuted_values().clone().set_requires_grad(true);
  const Tensor scale = torch::rand({5, 4, 6}, torch::kDouble);
  (plain * scale).sin().sum().backward();
  for (const Placements& layout : permuted_layouts()) {
    const Tensor leaf = with_permuted_dims(mesh, layout).detach().requires_grad_();
    (leaf * distribute_tensor(scale, mesh, {Shard(1)})).sin().sum().backward();
    const DTensorMeta& meta = meta_for_read(leaf.grad());
    for (const Tensor& part : meta.locals) CHECK(testing::is_in_order(part, *meta.spec));
    CHECK(torch::allclose(full_tensor(leaf.grad()), plain.grad()));
  }
}

TEST_CASE("part order: gradients that to_local() hands back") {
  const DeviceMesh mesh(World::fake(2, 0), {2});  // where a process does not know all parts, their tensor is row-major
  const Tensor leaf = distribute_tensor(torch::rand({4, 3}, torch::kDouble), mesh, {Shard(0)}).requires_grad_();
  const Tensor t = leaf * 1;
  Tensor gradient;
  t.register_hook([&](const Tensor& g) { gradient = g; });
  Tensor loss;
  for (const Tensor& part : to_local(t)) {
    const Tensor sines = part.t().contiguous().sin().sum();  // the gradient of `part` is transposed
    loss = loss.defined() ? loss + sines : sines;
  }
  loss.backward();
  REQUIRE(gradient.defined());
  for (const Tensor& part : meta_for_read(gradient).locals) CHECK(testing::is_in_order(part, *spec_of(gradient)));
}

TEST_CASE("part order: from_local() keeps the user's memory, whatever its order") {
  const DeviceMesh mesh(World::local(2), {2});
  const std::vector<Tensor> parts = {torch::rand({3, 2}).t(), torch::rand({3, 2}).t()};
  const Tensor t = from_local(parts, mesh, {Shard(0)}, {.strides = std::vector<int64_t>{3, 1}});
  t.add_(1);
  for (size_t i = 0; i < parts.size(); ++i) CHECK(torch::equal(to_local(t)[i], parts[i]));
}

}  // namespace
}  // namespace dtensor
