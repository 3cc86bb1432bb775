// set_ghost_width(): which slices one exchange serves, how long it lasts, and which tensors have it.
#include "dtensor/ghost_width.h"

#include <torch/types.h>

#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"
#include "propagation/strategy_cache.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

using Width = std::vector<int64_t>;
Tensor rows_on_4_ranks(int64_t rows = 64) { return zeros({rows, 8}, mesh_of(4), {Shard(0)}); }

constexpr int64_t kRowBytes = 8 * 4;

// The mean of the rows above and below, in place.
void average_rows(const Tensor& u) {
  const int64_t n = u.size(0) - 2;
  u.narrow(0, 1, n).copy_((u.narrow(0, 0, n) + u.narrow(0, 2, n)) / 2);
}

TEST_CASE("ghost width: without one, each slice and each write is an exchange, in all rounds alike") {
  const Tensor u = rows_on_4_ranks();
  // narrow(0, 2, 62) lacks two rows; a rank lacks one of those that it stores.
  for (int round = 0; round < 3; ++round) CHECK(traffic([&] { average_rows(u); }) == Traffic{2, 3 * kRowBytes});
}

TEST_CASE("ghost width: an in-place stencil fetches the region once, and each write updates it") {
  const Tensor u = rows_on_4_ranks();
  set_ghost_width(u, {1, 0});
  CHECK(traffic([&] { average_rows(u); }) == Traffic{2, 2 * 2 * kRowBytes});
  for (int round = 0; round < 3; ++round) CHECK(traffic([&] { average_rows(u); }) == Traffic{1, 2 * kRowBytes});
}

TEST_CASE("ghost width: after a write, one exchange serves all slices that leave out up to twice the width") {
  const DeviceMesh mesh(World::local(6), {2, 3});
  Pair u = make({29, 31}, mesh, {Shard(1), Shard(0)});
  set_ghost_width(u.distributed, {2, 1});
  for (int round = 0; round < 2; ++round) {
    std::vector<Pair> slices;
    CommDebugMode comm;
    for (int64_t rows = 0; rows <= 4; ++rows) {
      for (int64_t columns = 0; columns <= 2; ++columns) {
        for (int64_t y = 0; y <= rows; ++y) {
          for (int64_t x = 0; x <= columns; ++x) {
            const auto slice = [&](const Tensor& t) { return t.narrow(0, y, 29 - rows).narrow(1, x, 31 - columns); };
            slices.push_back({slice(u.plain) * 1, slice(u.distributed) * 1});
          }
        }
      }
    }
    CHECK(comm.total() == 1);
    for (const Pair& s : slices) CHECK(same(s.distributed, s.plain));
    for (const Tensor& t : {u.plain, u.distributed}) t.add_(1);
  }
}

TEST_CASE("ghost width: after a write, one exchange serves all rolls by up to the width, along any dims") {
  const DeviceMesh mesh(World::local(6), {2, 3});
  Pair u = make({29, 31, 3}, mesh, {Shard(1), Shard(0)});
  set_ghost_width(u.distributed, {2, 1, 0});
  for (int round = 0; round < 2; ++round) {
    std::vector<Pair> rolled;
    CommDebugMode comm;
    for (int64_t rows = -2; rows <= 2; ++rows) {
      for (int64_t columns = -1; columns <= 1; ++columns) {
        for (int64_t depth = 0; depth <= 2; ++depth) {
          const auto roll = [&](const Tensor& t) { return t.roll({rows, columns, depth}, {0, 1, 2}); };
          rolled.push_back({roll(u.plain), roll(u.distributed)});
        }
      }
    }
    CHECK(comm.total() == 1);
    for (const Pair& r : rolled) {
      CHECK(same(r.distributed, r.plain));
      CHECK(DTensor(r.distributed).placements() == Placements{Shard(1), Shard(0)});
    }
    for (const Tensor& t : {u.plain, u.distributed}) t.add_(1);
  }
}

TEST_CASE("ghost width: rolls by more than the width are fetched alone, and a clone has the rolls' region, too") {
  const auto [plain, u] = make({64, 8}, mesh_of(4), {Shard(0)}, torch::kFloat);
  const auto check = [plain = plain](const Tensor& t, int64_t factor, int64_t shift, const Traffic& expected) {
    Tensor rolled;
    CHECK(traffic([&] { rolled = t.roll(shift, 0); }) == expected);
    CHECK(same(rolled, plain.roll(shift, 0) * factor));
  };
  set_ghost_width(u, {1, 0});
  check(u, 1, 2, {1, 2 * 2 * kRowBytes});  // the margins of both borders
  check(u, 1, -1, {1, 2 * kRowBytes});
  check(u, 1, 1, {0, 0});
  CHECK(traffic([&u = u] { u.roll({-1, 3}, {0, 1}); }).calls == 0);
  const Tensor after = u.clone();
  u.zero_();  // not the region of the clone
  check(after, 1, 1, {0, 0});
  after.mul_(2);
  check(after, 2, 1, {1, 2 * kRowBytes});
  // Slices read a region of their own.
  CHECK(traffic([&] { after.slice(0, 2) * 1; }).calls == 1);
  set_ghost_width(after, {2, 0});
  check(after, 2, -2, {1, 2 * 2 * kRowBytes});
}

TEST_CASE("ghost width: a roll from a cached region reports the bytes that it would have received alone") {
  const Tensor u = rows_on_4_ranks();
  set_ghost_width(u, {2, 0});
  u.roll(1, 0);
  CommDebugMode comm;
  u.roll(-2, 0);
  CHECK(comm.reused() == 1);
  CHECK(comm.reused_bytes() == 2 * kRowBytes);
}

TEST_CASE("ghost width: a roll reads what was written to the base of its view") {
  const Pair u = make({64, 8}, mesh_of(4), {Shard(0)});
  const auto inside = [](const Tensor& t) { return t.narrow(0, 1, 62); };
  const Tensor view = inside(u.distributed);
  set_ghost_width(view, {1, 0});
  CHECK(same(view.roll(1, 0), inside(u.plain).roll(1, 0)));
  for (const Tensor& t : {u.plain, u.distributed}) t.add_(1);
  for (const int64_t shift : {1, -1}) CHECK(same(view.roll(shift, 0), inside(u.plain).roll(shift, 0)));
  for (const Tensor& t : {inside(u.plain), view}) t.mul_(3);
  CHECK(same(view.roll(1, 0), inside(u.plain).roll(1, 0)));
  CHECK(same(u.distributed.roll(1, 0), u.plain.roll(1, 0)));
}

TEST_CASE("ghost width: slices of a handle whose region has another width fetch it again, once") {
  const Pair x = make({64, 8}, mesh_of(4), {Shard(0)});
  const Tensor y = torch::_neg_view(x.distributed);
  set_ghost_width(x.distributed, {1, 0});
  CHECK(traffic([&] { y.narrow(0, 2, 62) * 1; }).calls == 1);
  set_ghost_width(x.distributed, {2, 0});
  Tensor first, last;
  CHECK(traffic([&] { first = y.narrow(0, 0, 60) * 1, last = y.narrow(0, 4, 60) * 1; }).calls == 1);
  CHECK(same(first, -x.plain.narrow(0, 0, 60)));
  CHECK(same(last, -x.plain.narrow(0, 4, 60)));
}

TEST_CASE("ghost width: rolls of a handle whose region has another width fetch it again") {
  const Pair x = make({64, 8}, mesh_of(4), {Shard(0)});
  const auto negated = [](const Tensor& t) { return torch::_neg_view(t); };
  const Tensor y = negated(x.distributed);
  set_ghost_width(x.distributed, {1, 0});
  CHECK(same(y.roll(1, 0), negated(x.plain).roll(1, 0)));
  set_ghost_width(x.distributed, {2, 0});
  for (const int64_t shift : {2, -1, -2, 1}) {
    CHECK(same(y.roll(shift, 0), negated(x.plain).roll(shift, 0)));
    CHECK(same(x.distributed.roll(shift, 0), x.plain.roll(shift, 0)));
  }
}

TEST_CASE("ghost width: rolls of other layouts, strides and modes equal those of one device") {
  struct Case {
    std::vector<int64_t> shape;
    Placements placements;
    bool is_turned;  // its dims in the other order in memory
  };
  const DeviceMesh mesh(World::local(4), {2, 2});
  for (const Case& c : std::vector<Case>{{{12, 10}, {Shard(0), Shard(0)}, false},
                                         {{13, 10}, {StridedShard(0, 2), Shard(0)}, false},
                                         {{3, 10}, {Shard(0), Shard(0)}, false},  // a rank has no rows
                                         {{12, 10}, {Shard(1), Shard(0)}, true},
                                         {{12, 10}, {Replicate(), Replicate()}, false}}) {
    Pair u = make(c.shape, mesh, c.placements);
    if (c.is_turned) u = {u.plain.t().contiguous().t(), u.distributed.t().contiguous().t()};
    set_ghost_width(u.distributed, {1, 1});
    const auto check = [&] {
      for (const std::vector<int64_t>& shifts : {std::vector<int64_t>{1, 0}, {-1, 1}, {0, -1}, {1, 3}}) {
        const auto rolled = [&](const Tensor& t) { return t.roll(shifts, {0, 1}); };
        CHECK(same(rolled(u.distributed), rolled(u.plain)));
        CHECK(rolled(u.distributed).strides() == rolled(u.plain).strides());
      }
    };
    check();
    const c10::InferenceMode inference;
    check();
  }
}

TEST_CASE("ghost width: rolls respect a memory limit, and need no entry of a frozen strategy cache") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor u = zeros({64, 8}, mesh, {Shard(0)});
  set_ghost_width(u, {1, 0});
  {
    const RedistributeMemoryLimit limit(2 * 16 * kRowBytes + 18 * kRowBytes -
                                        1);  // of the part, its box, and the result
    CHECK(traffic([&] { u.roll(1, 0); }).calls == 1);
  }
  strategy_cache(mesh.world()).freeze();
  CHECK(traffic([&] { u.roll(1, 0); }) == Traffic{1, 2 * kRowBytes});  // no region was cached
  CHECK(traffic([&] { u.roll({-1, 2}, {0, 1}); }).calls == 0);
}

TEST_CASE("ghost width: addends are rolled like elements, and gradients flow back") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  const Tensor plain = numbers({12, 8}).requires_grad_();
  const Tensor half = distribute_tensor(plain.detach() / 2, mesh, {Replicate(), Shard(0)});
  const Tensor u = from_local(to_local(half), mesh, {Partial(), Shard(0)}).clone();
  set_ghost_width(u, {1, 0});
  const Tensor x = u.detach().requires_grad_();
  const auto next = [](const Tensor& t) { return t.roll(1, 0) + t.roll(-1, 0) * t; };
  CHECK(torch::allclose(full_tensor(next(x)), next(plain)));
  next(x).sum().backward();
  next(plain).sum().backward();
  CHECK(torch::allclose(full_tensor(x.grad()), plain.grad()));
}

TEST_CASE("ghost width: slices beyond the region are fetched alone, and those with a step in it are not") {
  const Tensor u = rows_on_4_ranks();
  set_ghost_width(u, {1, 0});
  CHECK(traffic([&] { u.slice(0, 2) * 1; }).calls == 1);
  CHECK(traffic([&] { u.slice(0, 2, 64, 2) * 1; }).calls == 0);
  for (int k = 0; k < 2; ++k) CHECK(traffic([&] { u.slice(0, 3) * 1; }) == Traffic{1, 3 * kRowBytes});
  CHECK(traffic([&] { u.slice(0, 1, -1) * 1; }).calls == 0);
}

TEST_CASE("ghost width: a new width applies at once, and {} withdraws it") {
  const Tensor u = rows_on_4_ranks(), never = rows_on_4_ranks();
  set_ghost_width(u, {1, 0});
  average_rows(u);
  set_ghost_width(u, {2, 0});
  CHECK(ghost_width(u) == Width{2, 0});
  CHECK(traffic([&] { u.slice(0, 4) * 1; }).calls == 1);
  CHECK(traffic([&] { u.slice(0, 3, -1) * 1; }).calls == 0);
  for (const Width& none : {Width{}, Width{0, 0}}) {
    set_ghost_width(u, {1, 0});
    average_rows(u);
    set_ghost_width(u, none);
    CHECK(ghost_width(u).empty());
    for (int round = 0; round < 2; ++round)
      CHECK(traffic([&] { average_rows(u); }) == traffic([&] { average_rows(never); }));
  }
}

TEST_CASE("ghost width: handles and clones have it, views and results do not") {
  const Tensor u = zeros({32, 32}, mesh_of(4), {Shard(0)});
  CHECK(ghost_width(u).empty());
  set_ghost_width(u, {1, 1});
  u.mul_(2);
  for (const Tensor& t : {u, u.detach(), u.view({32, 32}), u.clone()}) CHECK(ghost_width(t) == Width{1, 1});
  for (const Tensor& t : {u * 1, u.t(), u.narrow(0, 0, 30), zeros_like(u)}) CHECK(ghost_width(t).empty());
  const Tensor before = u.clone();
  CHECK(traffic([&] { u.slice(0, 2) * 1; }).calls == 1);
  const Tensor after = u.clone();  // has the ghost region, too
  CHECK(traffic([&] { before.slice(0, 2) * 1; }).calls == 1);
  CHECK(traffic([&] { after.slice(0, 2) * 1; }).calls == 0);
}

TEST_CASE("ghost width: views of another dtype have none, even if sizes, strides and offset are equal") {
  const Tensor u = rows_on_4_ranks();
  set_ghost_width(u, {1, 0});
  const Tensor bits = u.view(torch::kInt);
  CHECK(ghost_width(bits).empty());
  set_ghost_width(bits, {2, 1});
  CHECK(ghost_width(u) == Width{1, 0});
  CHECK(ghost_width(bits.clone()) == Width{2, 1});

  const Tensor plain = numbers({16, 8});
  const Tensor real = distribute_tensor(plain, mesh_of(4), {Replicate()});
  const Tensor half = real.narrow(0, 0, 8), complex = torch::view_as_complex(real.view({8, 8, 2}));
  REQUIRE((half.sizes() == complex.sizes() && half.strides() == complex.strides()));
  set_ghost_width(half, {1, 1});
  CHECK(ghost_width(complex).empty());
  const Tensor copy = complex.clone();
  CHECK(ghost_width(copy).empty());
  CHECK(torch::equal(full_tensor(copy), torch::view_as_complex(plain.view({8, 8, 2}))));
  CHECK(ghost_width(half) == Width{1, 1});
}

TEST_CASE("ghost width: a result that takes another layout in place keeps it") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor rows = distribute_tensor(numbers({64, 8}), mesh, {Shard(0)});
  const Tensor u = distribute_tensor(numbers({64, 8}), mesh, {Replicate()}) * 2;
  set_ghost_width(u, {1, 0});
  u.add_(rows);
  CHECK(DTensor(u).placements() == Placements{Shard(0)});
  CHECK(ghost_width(u) == Width{1, 0});
}

TEST_CASE("ghost width: a slice whose region cannot be cached fetches its missing rows alone") {
  const Tensor u = rows_on_4_ranks();
  limit_remembered_bytes(DTensor(u).mesh().world(), 0);
  set_ghost_width(u, {1, 0});
  for (int k = 0; k < 2; ++k) CHECK(traffic([&] { u.slice(0, 2) * 1; }) == Traffic{1, 2 * kRowBytes});
  // Parts of 8 rows with a region of 2 rows, 320 bytes, which count 512 in the cache.
  const Tensor small = rows_on_4_ranks(32);
  const World& world = DTensor(small).mesh().world();
  set_ghost_width(small, {1, 0});
  const auto cost_of_slice = [&] { return traffic([&] { small.slice(0, 1) * 1; }); };
  limit_remembered_bytes(world, 511);
  for (int k = 0; k < 2; ++k) CHECK(cost_of_slice() == Traffic{1, kRowBytes});
  limit_remembered_bytes(world, 512);
  CHECK(cost_of_slice() == Traffic{1, 2 * kRowBytes});
  CHECK(cost_of_slice() == Traffic{0, 0});
  // Parts of 3, 3, 3 and no rows.
  Pair few = make({9, 4}, mesh_of(4), {Shard(0)});
  set_ghost_width(few.distributed, {1, 1});
  CHECK(same(few.distributed.slice(0, 1, 8).slice(1, 1, 3) * 1, few.plain.slice(0, 1, 8).slice(1, 1, 3) * 1));
}

TEST_CASE("ghost width: errors name the value and what would work") {
  const Tensor u = rows_on_4_ranks();
  const auto error_of = [](const Tensor& t, const Width& width) -> std::string {
    try {
      set_ghost_width(t, width);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "none";
  };
  CHECK_THAT(error_of(torch::zeros({4, 4}), {1, 1}), Catch::Contains("not distributed"));
  CHECK_THAT(error_of(u, {1}), Catch::Contains("[1] does not have one value per dim"));
  CHECK_THAT(error_of(u, {-1, 0}), Catch::Contains("-1 along dim 0") && Catch::Contains("give 0 to 31"));
  CHECK_THAT(error_of(u, {1, 4}), Catch::Contains("4 along dim 1 of size 8") && Catch::Contains("give 0 to 3"));
  CHECK(error_of(u, {31, 3}) == "none");
  const Tensor exposed = rows_on_4_ranks();
  mutable_local_tensors(exposed);
  CHECK_THAT(error_of(exposed, {1, 0}), Catch::Contains("mutable_local_tensors()") && Catch::Contains("clone()"));
  CHECK(error_of(exposed.clone(), {1, 0}) == "none");
  const Tensor complex = zeros({8, 8}, mesh_of(4), {Shard(0)}, {.dtype = torch::kComplexFloat});
  CHECK_THAT(error_of(complex, {1, 0}), Catch::Contains("complex") && Catch::Contains("real tensors"));
  CHECK(error_of(complex, {}) == "none");
}

}  // namespace
}  // namespace dtensor::testing
