// Tensors made like another tensor.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/fft_fftfreq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/hann_window.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/range.h>
#include <ATen/ops/tril_indices.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

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

TEST_CASE("Tensors like a slice or a padded tensor fetch nothing of it", "[factory]") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const auto x = distribute_tensor(at::rand({8, 3}), mesh, {Shard(0)});
  for (const at::Tensor& lazy : {x.slice(0, 3), at::constant_pad_nd(x, {0, 0, 5, 0})}) {
    CommDebugMode comm;
    const auto like = at::zeros_like(lazy), empty = at::empty_like(lazy), ones = lazy.new_ones(lazy.sizes());
    CHECK(comm.total() == 0);
    CHECK(at::equal(full_tensor(like), at::zeros(lazy.sizes())));
    CHECK(at::equal(full_tensor(ones), at::ones(lazy.sizes())));
    CHECK(empty.sizes() == lazy.sizes());
  }
  const auto padded = at::constant_pad_nd(x, {0, 0, 5, 0});
  at::zeros_like(padded);
  CHECK(at::equal(full_tensor(padded), at::constant_pad_nd(full_tensor(x), {0, 0, 5, 0})));
}

TEST_CASE("The layout of tensors like another follows the example", "[factory]") {
  const auto mesh = test_meshes()[1];
  const auto x = lay_out(at::rand({5, 6}, at::kDouble), mesh, {Shard(1), Partial()});
  CHECK(meta_for_read(at::zeros_like(x)).spec->placements() == Placements{Shard(1), Replicate()});
  CHECK(meta_for_read(x.new_zeros({5, 6})).spec->placements() == Placements{Shard(1), Replicate()});
  CHECK(meta_for_read(x.new_zeros({6, 5})).spec->placements() == Placements{Replicate(), Replicate()});
  const auto t = x.new_empty_strided({5, 6}, {1, 5});
  CHECK(t.strides() == at::IntArrayRef({1, 5}));
  CHECK(meta_for_read(t).locals[0].strides() == at::IntArrayRef({1, 5}));
  CHECK(at::zeros_like(x, x.options().device(c10::DeviceType::Meta)).is_meta());  // in the layout of the example
}

namespace {

struct Factory {
  const char* name;
  std::vector<int64_t> shape;
  std::function<void(at::Tensor&)> write;
  at::ScalarType dtype = at::kDouble;
};

std::vector<Factory> factories() {
  return {
      {"zeros",
       {5, 4},
       [](at::Tensor& out) {
         at::zeros_out(out, {5, 4});
       }},
      {"ones",
       {5, 4},
       [](at::Tensor& out) {
         at::ones_out(out, {5, 4});
       }},
      {"full",
       {5, 4},
       [](at::Tensor& out) {
         at::full_out(out, {5, 4}, 2.5);
       }},
      {"full of integers",
       {5, 4},
       [](at::Tensor& out) {
         at::full_out(out, {5, 4}, 3);
       },
       at::kLong},
      {"empty",
       {5, 4},
       [](at::Tensor& out) {
         at::empty_out(out, {5, 4}).fill_(2);
       }},
      {"arange", {5}, [](at::Tensor& out) { at::arange_out(out, 5); }},
      {"arange with steps", {5}, [](at::Tensor& out) { at::arange_out(out, 1, 11, 2); }, at::kLong},
      {"range", {5}, [](at::Tensor& out) { at::range_out(out, 1, 5); }},
      {"linspace", {5}, [](at::Tensor& out) { at::linspace_out(out, 0, 1, 5); }},
      {"logspace", {5}, [](at::Tensor& out) { at::logspace_out(out, 0, 1, 5); }},
      {"eye", {5, 5}, [](at::Tensor& out) { at::eye_out(out, 5); }},
      {"eye of two sizes", {5, 4}, [](at::Tensor& out) { at::eye_out(out, 5, 4); }},
      {"tril_indices", {2, 6}, [](at::Tensor& out) { at::tril_indices_out(out, 3, 3); }, at::kLong},
      {"hann_window", {5}, [](at::Tensor& out) { at::hann_window_out(out, 5); }},
      {"fft_fftfreq", {5}, [](at::Tensor& out) { at::fft_fftfreq_out(out, 5, 1.); }},
  };
}

}  // namespace

TEST_CASE("Factories with out= write the whole value in every layout", "[factory]") {
  const DeviceMesh grid(World::local(4), {2, 2}, {"x", "y"});
  const DeviceMesh two(World::local(2), {2}), three(World::local(3), {3});
  const std::vector<std::pair<DeviceMesh, Placements>> layouts = {{two, {Replicate()}},
                                                                  {two, {Shard(0)}},
                                                                  {three, {Shard(0)}},
                                                                  {two, {Partial()}},
                                                                  {two, {Partial(ReduceOp::kMax)}},
                                                                  {grid, {Shard(0), Partial()}},
                                                                  {grid, {Shard(0), Shard(0)}}};
  for (const Factory& factory : factories()) {
    for (const auto& [mesh, placements] : layouts) {
      INFO(factory.name << " into " << to_string(placements) << " on " << mesh.size());
      at::Tensor expected = at::full(factory.shape, 9, factory.dtype);
      const at::Tensor out = distribute_tensor(expected, mesh, placements);
      factory.write(expected);
      CommDebugMode comm;
      at::Tensor given = out;
      factory.write(given);
      CHECK(comm.total() == 0);
      CHECK(given.is_same(out));
      CHECK(spec_of(out)->placements() == placements);
      CHECK(at::equal(full_tensor(out), expected));
    }
  }
}

TEST_CASE("Factories with out= write through a copied view", "[factory]") {
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor x = distribute_tensor(at::full({6, 2}, 9, at::kDouble), mesh, {Shard(0)});
  at::Tensor rows = x.slice(0, 2, 5);
  at::eye_out(rows, 3, 2);
  CHECK(at::equal(full_tensor(x).slice(0, 2, 5), at::eye(3, 2, at::kDouble)));
  at::full_out(rows, {3, 2}, 4);
  CHECK(full_tensor(x).sum().item<double>() == 6 * 9 + 6 * 4);
}

TEST_CASE("Random factories with out=: the same value in all layouts, or an error", "[factory]") {
  const DeviceMesh mesh(World::local(3), {3});
  const std::vector<std::pair<std::vector<int64_t>, std::function<void(at::Tensor&)>>> table = {
      {{5, 4},
       [](at::Tensor& out) {
         at::rand_out(out, {5, 4});
       }},
      {{5, 4},
       [](at::Tensor& out) {
         at::randn_out(out, {5, 4});
       }},
      {{5, 4},
       [](at::Tensor& out) {
         at::randint_out(out, 100, {5, 4});
       }},
      {{7}, [](at::Tensor& out) { at::randperm_out(out, 7); }},
  };
  for (const auto& [shape, write] : table) {
    std::vector<at::Tensor> drawn;
    for (const Placement& p : {Placement(Replicate()), Placement(Shard(0))}) {
      at::manual_seed(3);
      at::Tensor out = distribute_tensor(at::full(shape, -9, at::kDouble), mesh, {p});
      write(out);
      for (const at::Tensor& local : p.is_replicate() ? meta_without_sync(out).locals : RankTensors()) {
        CHECK(at::equal(local, meta_without_sync(out).locals[0]));
      }
      drawn.push_back(full_tensor(out));
      CHECK(drawn.back().ne(-9).any().item<bool>());
    }
    CHECK(at::equal(drawn[0], drawn[1]));
  }
  at::Tensor sum = distribute_tensor(at::zeros({5, 4}), mesh, {Partial()});
  at::manual_seed(3);
  at::randn_out(sum, {5, 4});
  at::manual_seed(3);
  at::Tensor whole = distribute_tensor(at::zeros({5, 4}), mesh, {Replicate()});
  at::randn_out(whole, {5, 4});
  CHECK(at::equal(full_tensor(sum), full_tensor(whole)));
}

TEST_CASE("Factories with out= of another size", "[factory]") {
  const DeviceMesh mesh(World::local(2), {2});
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Partial())}) {
    at::Tensor out = distribute_tensor(at::ones({3, 4}), mesh, {p});
    CHECK_THROWS_WITH(at::zeros_out(out, {5, 4}), Catch::Contains("A distributed tensor keeps its size"));
    CHECK(at::equal(full_tensor(out), at::ones({3, 4})));
    CHECK_THROWS_WITH(at::eye_out(out, 5), Catch::Contains("A distributed tensor keeps its size"));
  }
  at::Tensor none = distribute_tensor(at::ones({0}), mesh);
  at::ones_out(none, {2, 2});
  CHECK(at::equal(full_tensor(none), at::ones({2, 2})));
}

TEST_CASE("full_like with another value hits the strategy cache", "[factory]") {
  const auto mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({5, 6}, at::kDouble), mesh, {Shard(0)});
  at::full_like(x, 1.5);
  const auto before = strategy_cache(mesh.world()).stats().misses;
  CHECK(difference(at::full_like(x, 2.5), at::full({5, 6}, 2.5, at::kDouble)) == std::nullopt);
  CHECK(strategy_cache(mesh.world()).stats().misses == before);
}

}  // namespace dtensor::testing
