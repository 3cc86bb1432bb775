// Operators that return numbers and truth values: every rank gets the same answer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

const std::vector<Placements>& layouts() {
  static const auto* const all = new std::vector<Placements>{{Replicate(), Replicate()},
                                                             {Shard(0), Replicate()},
                                                             {Shard(0), Shard(1)},
                                                             {Shard(1), Shard(1)},
                                                             {Partial(), Shard(0)},
                                                             {Partial(), Partial()},
                                                             {StridedShard(0, 2), Replicate()}};
  return *all;
}

}  // namespace

TEST_CASE("item() reduces Partials", "[scalar]") {
  for (const auto& mesh : {test_meshes()[1], test_meshes()[3]}) {
    const auto number = at::rand({}, at::kDouble);
    CHECK(lay_out(number, mesh, {Partial(), Replicate()}).item<double>() == Approx(number.item<double>()));
    CHECK(lay_out(number.reshape({1, 1}), mesh, {Shard(0), Partial()}).item<double>() == Approx(number.item<double>()));
    const auto x = at::rand({5, 3}, at::kDouble);
    CHECK(lay_out(x, mesh, {Shard(0), Shard(1)}).sum().item<double>() == Approx(x.sum().item<double>()));
    CHECK_THROWS_WITH(lay_out(x, mesh, {Shard(0), Shard(1)}).item(), Catch::Contains("15 elements"));
    CHECK(lay_out(at::zeros({1}, at::kLong), mesh, {Replicate(), Replicate()}).is_nonzero() == false);
  }
  const DeviceMesh nowhere(World::abstract(4), {4});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{};
  const auto x = from_local({}, nowhere, {Replicate()}, options);
  CHECK_THROWS_AS(x.item(), c10::NotImplementedError);
}

TEST_CASE("a tensor equals itself without communication", "[scalar]") {
  for (const auto& mesh : {test_meshes()[1], test_meshes()[3]}) {
    const auto x = at::rand({5, 4}, at::kDouble);
    auto with_nan = x.clone();
    with_nan.select(0, 4).fill_(NAN);  // on some ranks only
    for (const Placements& a : layouts()) {
      CAPTURE(mesh.to_string(), to_string(a));
      const bool is_partial = std::any_of(a.begin(), a.end(), [](const Placement& p) { return p.is_partial(); });
      const auto self = lay_out(x, mesh, a), other = lay_out(x, mesh, a), no = lay_out(with_nan, mesh, a);
      const auto whole = lay_out((x * 9).to(at::kLong), mesh, a);
      CommDebugMode comm;
      CHECK(at::equal(whole, whole));
      CHECK(at::equal(whole, whole.detach()));
      CHECK(comm.total() == 0);
      CHECK(at::equal(self, self));
      CHECK(at::equal(self, self.detach()));
      CHECK_FALSE(at::equal(no, no));
      if (!is_partial) CHECK(comm.total() == 0);
      comm.reset();
      const bool equal = at::equal(self, other);
      if (!is_partial) CHECK(equal);
      // Replicas are equal everywhere.
      if (a == Placements{Replicate(), Replicate()}) CHECK(comm.total() == 0);
    }
  }
}

TEST_CASE("equal and allclose in every pair of layouts", "[scalar]") {
  const auto& mesh = test_meshes()[3];
  const auto x = at::rand({5, 3}, at::kDouble).mul(1024).floor();  // sums of halves are exact
  auto other = x.clone();
  other[4][2] += 1;
  for (const auto& a : layouts()) {
    for (const auto& b : layouts()) {
      CAPTURE(to_string(a), to_string(b));
      const bool exact = !meta_for_read(lay_out(x, mesh, a)).spec->has_partial() &&
                         !meta_for_read(lay_out(x, mesh, b)).spec->has_partial();
      if (exact) CHECK(at::equal(lay_out(x, mesh, a), lay_out(x, mesh, b)));
      CHECK_FALSE(at::equal(lay_out(x, mesh, a), lay_out(other, mesh, b)));
      CHECK(at::allclose(lay_out(x, mesh, a), lay_out(x, mesh, b)));
      CHECK_FALSE(at::allclose(lay_out(x, mesh, a), lay_out(other, mesh, b)));
    }
  }
  CHECK_FALSE(at::equal(lay_out(x, mesh, layouts()[0]), lay_out(x.t().contiguous(), mesh, layouts()[0])));
  CHECK_THROWS_WITH(at::equal(lay_out(x, mesh, layouts()[0]), x), Catch::Contains("plain tensor"));
  const auto whole = x.mul(9).to(at::kLong);  // of several dtypes, as numbers
  for (const auto& layout : layouts()) {
    const auto self = lay_out(whole, mesh, layout);
    CHECK(at::equal(self, lay_out(whole.to(at::kDouble), mesh, layouts()[0])));
    CHECK(at::equal(self, lay_out(whole.to(at::kInt), mesh, layouts()[0])));
    CHECK_FALSE(at::equal(self, lay_out(whole.to(at::kDouble).add(0.5), mesh, layouts()[0])));
  }
  const ImplicitReplication allowed;
  CHECK(at::equal(lay_out(x, mesh, layouts()[2]), x));
}

TEST_CASE("is_same_size, is_set_to and the like compare shapes and memory", "[scalar]") {
  const auto& mesh = test_meshes()[1];
  const auto x = lay_out(at::rand({5, 3}, at::kDouble), mesh, {Shard(0), Replicate()});
  CHECK(x.is_same_size(x * 2));
  CHECK_FALSE(x.is_same_size(x.sum()));
  CHECK(x.is_set_to(x.detach()));
  CHECK_FALSE(x.is_set_to(x.clone()));
  CHECK_FALSE(x.is_pinned());
  CHECK(call_op("aten::_is_all_true", {x > -1})[0].item<bool>());
  CHECK_FALSE(call_op("aten::_is_any_true", {x > 2})[0].item<bool>());
}

}  // namespace dtensor::testing
