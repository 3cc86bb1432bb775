#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/diagonal_scatter.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/select_scatter.h>
#include <ATen/ops/slice_scatter.h>
#include <ATen/ops/take_along_dim.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_copy.h>
#include <ATen/ops/where.h>

#include "absl/strings/match.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;
using at::indexing::Slice;

namespace {

using Indices = c10::List<std::optional<at::Tensor>>;

// Input 0 is a tensor of numbers, the next `lists` are indices below `high`, the rest numbers. No index twice along the
// last dim if `distinct`: the order of writes is undefined.
std::function<at::Tensor(size_t, const std::vector<int64_t>&)> with_indices(int64_t high, size_t lists = 1,
                                                                            bool distinct = false, int64_t low = 0) {
  return [=](size_t i, const std::vector<int64_t>& shape) {
    const auto uniform = [&] { return at::rand(shape, at::TensorOptions(at::kDouble)).mul(2).sub(1); };
    if (i == 0 || i > lists) return uniform();
    if (!distinct) return at::randint(low, high, shape, at::TensorOptions(at::kLong));
    std::vector<int64_t> wide = shape;
    wide.back() = high;
    return at::rand(wide, at::TensorOptions(at::kDouble))
        .argsort(static_cast<int64_t>(-1))
        .narrow(-1, 0, shape.back())
        .contiguous();
  };
}

void check_all(const std::vector<OpCase>& cases) {
  for (const OpCase& c : cases) check_op(c);
}

const std::vector<ReduceOp> kOtherPartials = {ReduceOp::kMax};

TEST_CASE("look-ups match ATen in every layout") {
  check_all({
      {.name = "index_select",
       .fn = [](auto& t) { return Tensors{t[0].index_select(0, t[1])}; },
       .shapes = {{7, 3}, {5}},
       .make = with_indices(7),
       .strided_inputs = true,
       .more_partials = kOtherPartials},
      {.name = "index_select, last dim",
       .fn = [](auto& t) { return Tensors{t[0].index_select(-1, t[1])}; },
       .shapes = {{3, 2}, {5}},
       .make = with_indices(2)},
      {.name = "index_select by nothing",
       .fn = [](auto& t) { return Tensors{t[0].index_select(1, t[1])}; },
       .shapes = {{3, 4}, {0}},
       .make = with_indices(4)},
      {.name = "index_select by one",
       .fn = [](auto& t) { return Tensors{t[0].index_select(1, t[1])}; },
       .shapes = {{3, 4}, {}},
       .make = with_indices(4)},
      {.name = "gather",
       .fn = [](auto& t) { return Tensors{t[0].gather(1, t[1])}; },
       .shapes = {{4, 5}, {4, 3}},
       .make = with_indices(5),
       .strided_inputs = true,
       .more_partials = kOtherPartials},
      {.name = "gather, first dim",
       .fn = [](auto& t) { return Tensors{t[0].gather(0, t[1])}; },
       .shapes = {{3, 4}, {6, 4}},
       .make = with_indices(3)},
      {.name = "gather by a smaller index",
       .fn = [](auto& t) { return Tensors{t[0].gather(1, t[1])}; },
       .shapes = {{5, 4}, {3, 2}},
       .make = with_indices(4)},
      {.name = "gather of one",
       .fn = [](auto& t) { return Tensors{t[0].gather(1, t[1])}; },
       .shapes = {{6, 1}, {6, 1}},
       .make = with_indices(1)},
      {.name = "gather of a scalar",
       .fn = [](auto& t) { return Tensors{t[0].gather(0, t[1])}; },
       .shapes = {{}, {}},
       .make = with_indices(1)},
      {.name = "take_along_dim",
       .fn = [](auto& t) { return Tensors{at::take_along_dim(t[0], t[1], 0)}; },
       .shapes = {{3, 4}, {2, 1}},
       .make = with_indices(3)},
      {.name = "take",
       .fn = [](auto& t) { return Tensors{t[0].take(t[1])}; },
       .shapes = {{3, 4}, {2, 5}},
       .make = with_indices(12)},
      {.name = "index",
       .fn = [](auto& t) { return Tensors{t[0].index({t[1]})}; },
       .shapes = {{5, 3}, {4}},
       .make = with_indices(5, 1, false, -5),
       .strided_inputs = true,
       .more_partials = kOtherPartials},
      {.name = "index by a matrix",
       .fn =
           [](auto& t) {
             return Tensors{t[0].index({Slice(), t[1]})};
           },
       .shapes = {{3, 4, 2}, {2, 5}},
       .make = with_indices(4)},
      {.name = "index by two",
       .fn =
           [](auto& t) {
             return Tensors{t[0].index({t[1], t[2]})};
           },
       .shapes = {{4, 3, 2}, {5}, {2, 1}},
       .make = with_indices(3, 2, false, -3)},
      {.name = "index by two apart",
       .fn =
           [](auto& t) {
             return Tensors{t[0].index({t[1], Slice(), t[2]})};
           },
       .shapes = {{4, 3, 5}, {6}, {6}},
       .make = with_indices(4, 2)},
      {.name = "index by nothing",
       .fn = [](auto& t) { return Tensors{t[0].index({t[1]})}; },
       .shapes = {{5, 3}, {0}},
       .make = with_indices(5)},
      {.name = "index by a mask",
       .fn = [](auto& t) { return Tensors{t[0].index({t[1]})}; },
       .shapes = {{5, 3}, {5}},
       .make =
           [](size_t i, auto& shape) {
             return i == 0 ? at::rand(shape, at::TensorOptions(at::kDouble)) : at::rand(shape).gt(0.4);
           }},
      {.name = "index of bools",
       .fn =
           [](auto& t) {
             return Tensors{t[0].gt(0).index_select(0, t[1]), t[0].gt(0).gather(0, t[2]), t[0].gt(0).index({t[1]})};
           },
       .shapes = {{5, 3}, {4}, {2, 3}},
       .make = with_indices(5, 2),
       .grad = {false, false, false}},
  });
}

TEST_CASE("a look-up along a shard does not gather the table") {
  const auto silent = [](const std::vector<Placement>& p) { return p[0].is_sharded() && p[1].is_replicate(); };
  check_all({
      {.name = "index_select",
       .fn = [](auto& t) { return Tensors{t[0].index_select(0, t[1])}; },
       .shapes = {{7, 3}, {5}},
       .make = with_indices(7),
       .silent = silent},
      {.name = "gather",
       .fn = [](auto& t) { return Tensors{t[0].gather(1, t[1])}; },
       .shapes = {{4, 5}, {4, 3}},
       .make = with_indices(5),
       .silent =
           [](auto& p) { return (p[0] == Shard(1) && p[1].is_replicate()) || (p[0] == Shard(0) && p[1] == Shard(0)); }},
      {.name = "index",
       .fn = [](auto& t) { return Tensors{t[0].index({t[1]})}; },
       .shapes = {{5, 3}, {4}},
       .make = with_indices(5),
       .silent = silent},
      {.name = "scatter",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).scatter_(1, t[1], 5.0)}; },
       .shapes = {{4, 5}, {4, 2}},
       .make = with_indices(5),
       .partial_inputs = false,
       .silent = [](auto& p) { return p[0] == Shard(1) && p[1].is_replicate(); }},
  });
}

TEST_CASE("writes by index match ATen in every layout, in place too") {
  std::vector<OpCase> cases = {
      {.name = "index_add",
       .fn = [](auto& t) { return Tensors{t[0].index_add(0, t[1], t[2], 2)}; },
       .shapes = {{5, 3}, {4}, {4, 3}}},
      {.name = "index_add_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_add_(1, t[1], t[2])}; },
       .shapes = {{3, 5}, {4}, {3, 4}},
       .strided_inputs = true},
      {.name = "index_add of nothing",
       .fn = [](auto& t) { return Tensors{t[0].index_add(1, t[1], t[2])}; },
       .shapes = {{3, 5}, {0}, {3, 0}}},
      {.name = "index_copy",
       .fn = [](auto& t) { return Tensors{t[0].index_copy(0, t[1], t[2])}; },
       .shapes = {{5, 3}, {4}, {4, 3}}},
      {.name = "index_copy_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_copy_(1, t[1], t[2])}; },
       .shapes = {{3, 5}, {4}, {3, 4}}},
      {.name = "index_fill",
       .fn = [](auto& t) { return Tensors{t[0].index_fill(0, t[1], 3.5)}; },
       .shapes = {{5, 3}, {2}}},
      {.name = "index_fill_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_fill_(1, t[1] - 5, 3.5)}; },
       .shapes = {{3, 5}, {2}}},
      {.name = "index_reduce",
       .fn = [](auto& t) { return Tensors{t[0].index_reduce(0, t[1], t[2], "amax")}; },
       .shapes = {{5, 3}, {4}, {4, 3}}},
      {.name = "scatter",
       .fn = [](auto& t) { return Tensors{t[0].scatter(1, t[1], t[2])}; },
       .shapes = {{4, 5}, {4, 3}, {4, 3}}},
      {.name = "scatter, short index, long source",
       .fn = [](auto& t) { return Tensors{t[0].scatter(1, t[1], t[2])}; },
       .shapes = {{4, 5}, {3, 2}, {4, 3}},
       .grad = {true, false, false},
       .strided_inputs = true},
      {.name = "scatter_ of a number",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).scatter_(1, t[1], 2.5)}; },
       .shapes = {{4, 5}, {4, 1}}},
      {.name = "scatter with reduce",
       .fn = [](auto& t) { return Tensors{t[0].scatter(1, t[1], t[2], "add")}; },
       .shapes = {{4, 5}, {4, 3}, {4, 3}},
       .grad = {false, false, false}},
      {.name = "scatter_add",
       .fn = [](auto& t) { return Tensors{t[0].scatter_add(1, t[1], t[2])}; },
       .shapes = {{4, 5}, {4, 3}, {4, 3}}},
      {.name = "scatter_add_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).scatter_add_(1, t[1], t[2])}; },
       .shapes = {{4, 5}, {4, 3}, {4, 3}}},
      {.name = "scatter_reduce",
       .fn = [](auto& t) { return Tensors{t[0].scatter_reduce(1, t[1], t[2], "amax", false)}; },
       .shapes = {{4, 5}, {4, 3}, {4, 3}}},
      {.name = "index_put",
       .fn = [](auto& t) { return Tensors{t[0].index_put(Indices{t[1]}, t[2])}; },
       .shapes = {{5, 3}, {4}, {4, 3}}},
      {.name = "index_put_ of a number",
       .fn =
           [](auto& t) {
             return Tensors{(t[0] * 1).index_put_({Slice(), t[1]}, t[2])};
           },
       .shapes = {{3, 5}, {4}, {}}},
      {.name = "index_put_ of a row",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_put_({t[1]}, t[2])}; },
       .shapes = {{5, 3}, {4}, {3}}},
      {.name = "index_put, adding",
       .fn = [](auto& t) { return Tensors{t[0].index_put(Indices{t[1]}, t[2], true)}; },
       .shapes = {{5, 3}, {4}, {4, 3}},
       .strided_inputs = true},
      {.name = "index_put_, adding a row",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_put_(Indices{t[1]}, t[2], true)}; },
       .shapes = {{5, 3}, {4}, {3}}},
  };
  for (OpCase& c : cases) {
    c.make = with_indices(5, 1, /*distinct=*/true);
    if (absl::StrContains(c.name, "_ ") || c.name.back() == '_' || absl::StrContains(c.name, "_,"))
      c.partial_inputs = false;
  }
  check_all(cases);
  check_all({
      {.name = "index_put_ by two",
       .fn =
           [](auto& t) {
             return Tensors{(t[0] * 1).index_put_({t[1], t[2]}, t[3])};
           },
       .shapes = {{4, 5}, {3}, {3}, {3}},
       .make = with_indices(4, 2, true),
       .partial_inputs = false},
      {.name = "index_put_ by a mask",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).index_put_({t[0] > 0}, 7.0)}; },
       .shapes = {{5, 3}},
       .partial_inputs = false},
      {.name = "put_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).put_(t[1], t[2])}; },
       .shapes = {{3, 4}, {5}, {5}},
       .make = with_indices(12, 1, true)},
      {.name = "masked_scatter",
       .fn = [](auto& t) { return Tensors{t[0].masked_scatter(t[1] > 0, t[1])}; },
       .shapes = {{4, 3}, {4, 3}},
       .grad = {true, false}},
      {.name = "masked_scatter_",
       .fn = [](auto& t) { return Tensors{(t[0] * 1).masked_scatter_(t[1] > 0, t[1])}; },
       .shapes = {{4, 3}, {4, 3}},
       .grad = {true, false}},
      {.name = "select_scatter",
       .fn = [](auto& t) { return Tensors{at::select_scatter(t[0], t[1], 1, 2)}; },
       .shapes = {{4, 3}, {4}}},
      {.name = "slice_scatter",
       .fn = [](auto& t) { return Tensors{at::slice_scatter(t[0], t[1], 0, 1, 4)}; },
       .shapes = {{5, 3}, {3, 3}}},
      {.name = "diagonal_scatter",
       .fn = [](auto& t) { return Tensors{at::diagonal_scatter(t[0], t[1])}; },
       .shapes = {{5, 3}, {3}}},
  });
}

// Into a tensor in the layout of the result.
template <typename F>
Tensors into(const at::Tensor& like, F f) {
  at::Tensor out = like.detach() * 0;
  f(out);
  return {out};
}

TEST_CASE("results can be written into an existing tensor") {
  std::vector<OpCase> cases = {
      {.name = "index_select.out",
       .fn =
           [](auto& t) {
             return into(t[0].index_select(0, t[1]), [&](auto& out) { at::index_select_out(out, t[0], 0, t[1]); });
           },
       .shapes = {{5, 3}, {4}}},
      {.name = "gather.out",
       .fn = [](auto& t) { return into(t[0].gather(1, t[1]), [&](auto& out) { at::gather_out(out, t[0], 1, t[1]); }); },
       .shapes = {{3, 5}, {3, 4}}},
      {.name = "index.out",
       .fn =
           [](auto& t) { return into(at::index(t[0], {t[1]}), [&](auto& out) { at::index_out(out, t[0], {t[1]}); }); },
       .shapes = {{5, 3}, {4}}},
      {.name = "scatter_add.out",
       .fn =
           [](auto& t) {
             return into(t[0].scatter_add(1, t[1], t[2]),
                         [&](auto& out) { at::scatter_add_out(out, t[0], 1, t[1], t[2]); });
           },
       .shapes = {{4, 5}, {4, 3}, {4, 3}}},
      {.name = "cat.out",
       .fn =
           [](auto& t) {
             return into(at::cat({t[0], t[2]}, 0), [&](auto& out) { at::cat_out(out, {t[0], t[2]}, 0); });
           },
       .shapes = {{4, 5}, {1}, {3, 5}}},
      {.name = "view_copy.out",
       .fn =
           [](auto& t) {
             return into(at::view_copy(t[0], {20}), [&](auto& out) { at::view_copy_out(out, t[0], {20}); });
           },
       .shapes = {{4, 5}, {1}}},
  };
  for (OpCase& c : cases) {
    c.make = with_indices(5);
    c.grad.assign(c.shapes.size(), false);
  }
  check_all(cases);
}

TEST_CASE("one_hot in a MeshScope") {
  check_op({.name = "one_hot",
            .fn =
                [](auto& t) {
                  std::optional<MeshScope> scope;
                  if (is_dtensor(t[1])) scope.emplace(meta_for_read(t[1]).spec->mesh());
                  return Tensors{at::one_hot(t[1], 5)};
                },
            .shapes = {{1}, {4, 3}},
            .make = with_indices(5),
            .grad = {false, false}});
}

TEST_CASE("one_hot without a number of classes finds it in one exchange") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  const at::Tensor ids = at::randint(9, {40, 2}, at::kLong);
  for (const Placements& placements :
       {Placements{Shard(0), Replicate()}, Placements{Shard(0), Shard(0)}, Placements{Shard(0), Shard(1)}}) {
    CAPTURE(to_string(placements));
    CommDebugMode comm;
    const at::Tensor hot = at::one_hot(lay_out(ids, mesh, placements));
    CHECK(comm.total() == 1);
    CHECK(comm.bytes() <= 5 * 16);
    CHECK(meta_for_read(hot).spec->placements() == placements);
    CHECK(difference(hot, at::one_hot(ids)) == std::nullopt);
  }
  const at::Tensor addends = lay_out(ids, mesh, {Partial(), Shard(0)});
  CHECK(difference(at::one_hot(addends), at::one_hot(ids)) == std::nullopt);
  CHECK(difference(at::one_hot(addends, 9), at::one_hot(ids, 9)) == std::nullopt);
  CHECK_THROWS_WITH(at::one_hot(lay_out(ids - 9, mesh, {Shard(0), Shard(1)})), Catch::Contains("non-negative"));
}

// With a given number of classes, ranks check only their own indices: without communication, in an abstract world, too.
TEST_CASE("one_hot of split indices stays split") {
  for (const auto& mesh : test_meshes()) {
    const auto ids = distribute_tensor(at::arange(5), mesh, Placements(mesh.ndim(), Shard(0)));
    CommDebugMode comm;
    const auto hot = at::one_hot(ids, 5);
    CHECK(comm.total() == 0);
    CHECK(hot.scalar_type() == at::kLong);
    CHECK(spec_of(hot)->placements() == spec_of(ids)->placements());
    CHECK(at::equal(full_tensor(hot), at::one_hot(at::arange(5), 5)));
    CHECK_THROWS_WITH(at::one_hot(ids, 4), Catch::Contains("smaller than num_classes"));
    CHECK_THROWS_WITH(at::one_hot(ids - 1, 5), Catch::Contains("non-negative"));
    CHECK_THROWS_WITH(at::one_hot(ids, 0), Catch::Contains("num_classes"));
  }
  const DeviceMesh mesh(World::abstract(4), {4});
  const auto ids = distribute_tensor(at::arange(8), mesh, {Shard(0)});
  CHECK(spec_of(at::one_hot(ids, 3))->placements() == Placements{Shard(0)});
}

TEST_CASE("sorted lists are searched in every layout") {
  const auto sorted = [](size_t i, const std::vector<int64_t>& shape) {
    const auto x = at::rand(shape, at::TensorOptions(at::kDouble));
    return i == 0 ? std::get<0>(x.sort(-1)) : x;
  };
  check_all({
      {.name = "bucketize",
       .fn = [](auto& t) { return Tensors{at::bucketize(t[1], t[0])}; },
       .shapes = {{5}, {4, 3}},
       .make = sorted,
       .grad = {false, false}},
      {.name = "searchsorted",
       .fn = [](auto& t) { return Tensors{at::searchsorted(t[0], t[1])}; },
       .shapes = {{5}, {4, 3}},
       .make = sorted,
       .grad = {false, false}},
      {.name = "searchsorted, a list per row",
       .fn = [](auto& t) { return Tensors{at::searchsorted(t[0], t[1], true)}; },
       .shapes = {{4, 5}, {4, 3}},
       .make = sorted,
       .grad = {false, false}},
  });
}

TEST_CASE("operators with data-dependent shapes return the right shapes") {
  check_all({
      {.name = "nonzero",
       .fn = [](auto& t) { return Tensors{at::nonzero(t[0] > 0)}; },
       .shapes = {{5, 3}},
       .grad = {false}},
      {.name = "masked_select",
       .fn = [](auto& t) { return Tensors{t[0].masked_select(t[0] > 0)}; },
       .shapes = {{5, 3}}},
      {.name = "where", .fn = [](auto& t) { return at::where(t[0] > 0); }, .shapes = {{5, 3}}, .grad = {false}},
      {.name = "unique",
       .fn = [](auto& t) { return Tensors{std::get<0>(at::_unique2(t[0].round()))}; },
       .shapes = {{5, 3}},
       .grad = {false}},
  });
  const DeviceMesh nobody(World::abstract(4), {4});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{8, 2};
  const at::Tensor x = from_local({}, nobody, {Shard(0)}, options);
  CHECK_THROWS_WITH(at::nonzero(x), Catch::Contains("aten::nonzero") && Catch::Contains("abstract"));
}

at::Tensor replicated(const at::Tensor& t, const DeviceMesh& mesh) {
  return from_local(std::vector<at::Tensor>(mesh.local_ranks().size(), t), mesh, {Replicate()});
}

TEST_CASE("an index out of range is an error in every layout") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor full = at::rand({8, 2}, at::TensorOptions(at::kDouble));
  for (const Placement& p : {Replicate(), Shard(0), Shard(1)}) {
    const at::Tensor x = lay_out(full, mesh, {p});
    const auto list = [&](int64_t bad) {
      return replicated(at::tensor(std::vector<int64_t>{0, bad}, at::TensorOptions(at::kLong)), mesh);
    };
    const at::Tensor source = replicated(full.narrow(0, 0, 2), mesh);
    for (int64_t bad : {8, -9}) {
      INFO(p << ", index " << bad);
      CHECK_THROWS_AS(x.index_select(0, list(bad)), c10::IndexError);
      CHECK_THROWS_AS(x.index({list(bad)}), c10::IndexError);
      CHECK_THROWS_AS(x.gather(0, list(bad).unsqueeze(1).expand({2, 2})), c10::Error);
      CHECK_THROWS_AS(x.index_fill(0, list(bad), 1.0), c10::IndexError);
      CHECK_THROWS_AS(x.clone().index_put_({list(bad)}, source), c10::IndexError);
      CHECK_THROWS_AS(x.index_add(0, list(bad), source), c10::Error);
      CHECK_THROWS_AS(x.scatter(0, list(bad).unsqueeze(1).expand({2, 2}), source), c10::Error);
    }
    CHECK_FALSE(difference(x.index({list(-8)}),
                           full.index({at::tensor(std::vector<int64_t>{0, -8}, at::TensorOptions(at::kLong))}))
                    .has_value());
  }
}

}  // namespace
