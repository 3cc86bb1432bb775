// Reductions, scans, sorts and norms compared with plain ATen, on uneven and empty shards, and their communication.
#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <optional>

#include "comm/scope.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;
using Values = std::vector<c10::IValue>;
using Dims = std::vector<int64_t>;
OpCase reduction(const std::string& op, std::vector<int64_t> shape, Values rest = {}) {
  OpCase c;
  c.name = op;
  c.shapes = {std::move(shape)};
  c.fn = [op, rest](const Tensors& t) {
    Values args(t.begin(), t.end());
    args.insert(args.end(), rest.begin(), rest.end());
    return call_op(op, args);
  };
  return c;
}

bool always(const std::vector<Placement>&) { return true; }

struct Collectives : CommListener {
  void on_comm(const CommEvent& e, bool before) override {
    if (!before) events.push_back(e);
  }
  std::vector<CommEvent> events;
};

}  // namespace

TEST_CASE("Sums and means", "[reduction]") {
  std::vector<OpCase> table = {
      reduction("aten::sum", {5, 6}),
      reduction("aten::sum.dim_IntList", {5, 6}, {Dims{0}, false}),
      reduction("aten::sum.dim_IntList", {5, 2, 3}, {Dims{-1, 0}, true}),
      reduction("aten::sum.dim_IntList", {5, 6}, {Dims{}, false}),
      reduction("aten::mean", {5, 6}),
      reduction("aten::mean", {2, 1}),
      reduction("aten::mean.dim", {5, 6}, {Dims{1}, true}),
      reduction("aten::mean.dim", {2, 3, 2}, {Dims{0, 2}, false}),
      reduction("aten::mean.dim", {0, 3}, {Dims{1}, false}),
  };
  for (auto& c : table) {
    c.silent = always;
    c.strided_inputs = true;
    c.more_partials = {ReduceOp::kAvg};
    DYNAMIC_SECTION(c.name << at::IntArrayRef(c.shapes[0])) { check_op(c, 40); }
  }
  OpCase scalar = reduction("aten::sum", {});
  check_op(scalar);
}

TEST_CASE("Other reductions", "[reduction]") {
  std::vector<OpCase> table = {
      reduction("aten::prod", {5, 3}),
      reduction("aten::prod.dim_int", {5, 3}, {0, true}),
      reduction("aten::nansum", {5, 3}),
      reduction("aten::amax", {5, 3}, {Dims{0}, false}),
      reduction("aten::amax", {5, 3}),
      reduction("aten::amin", {2, 3}, {Dims{0, 1}, true}),
      reduction("aten::max", {5, 3}),
      reduction("aten::min", {1, 2}),
      reduction("aten::max.dim", {5, 3}, {1, false}),
      reduction("aten::min.dim", {5, 3}, {0, true}),
      reduction("aten::max.dim", {}, {0, false}),
      reduction("aten::any", {5, 3}),
      reduction("aten::all.dim", {5, 3}, {0, false}),
      reduction("aten::any.dims", {5, 3}, {Dims{0, 1}, false}),
      reduction("aten::any.dims", {5, 3}, {Dims{}, false}),
      reduction("aten::all.dims", {5, 3}),
      reduction("aten::argmax", {5, 3}),
      reduction("aten::argmax", {5, 3}, {0, true}),
      reduction("aten::argmin", {5, 3}, {1, false}),
      reduction("aten::std.correction", {5, 3}, {Dims{0}, 1, false}),
      reduction("aten::var.correction", {5, 3}),
      reduction("aten::var_mean.correction", {5, 3}, {Dims{1}, 0, true}),
      reduction("aten::std_mean.correction", {5, 3}),
      reduction("aten::logsumexp", {5, 3}, {Dims{1}, false}),
      reduction("aten::median", {5, 3}),
      reduction("aten::nanmedian", {5, 3}),
      reduction("aten::median.dim", {5, 3}, {0, false}),
      reduction("aten::mode", {5, 3}, {0, false}),
      reduction("aten::kthvalue", {5, 3}, {2, 0, false}),
      reduction("aten::topk", {5, 3}, {2, 1}),
      reduction("aten::topk", {6, 3}, {3, 0}),
      reduction("aten::glu", {5, 6}, {-1}),
      reduction("aten::glu", {4, 3}, {0}),
      reduction("aten::sort", {5, 3}, {0}),
      reduction("aten::sort.stable", {5, 3}, {true, 1, true}),
      reduction("aten::cumsum", {5, 3}, {0}),
      reduction("aten::cumprod", {5, 3}, {1}),
      reduction("aten::logcumsumexp", {5, 3}, {1}),
      reduction("aten::cummax", {5, 3}, {0}),
      reduction("aten::cummin", {5, 3}, {1}),
      reduction("aten::count_nonzero", {5, 3}),
      reduction("aten::count_nonzero.dim_IntList", {5, 3}, {Dims{0}}),
      reduction("aten::aminmax", {5, 3}, {0, true}),
      reduction("aten::linalg__powsum", {5, 3}, {3.0, Dims{0}}),
      reduction("aten::std", {5, 3}, {true}),
      reduction("aten::dist", {5, 3}, {2.0}),
  };
  for (auto& c : table) {
    c.more_partials = {ReduceOp::kMax};
    // Positive and distinct: a maximum at two places has no unique gradient, nor do signs of sums of random addends.
    c.make = [](size_t, const std::vector<int64_t>& s) { return at::rand(s, at::kDouble) + 0.5; };
    if (c.name == "aten::prod" || c.name == "aten::amax") c.more_partials.push_back(ReduceOp::kProduct);
    if (c.name == "aten::dist") {
      c.shapes.push_back({5, 3});
      c.fn = [](const Tensors& t) { return call_op("aten::dist", {t[0], t[1], 2.0}); };
    }
    if (c.name == "aten::linalg__powsum" || c.name == "aten::aminmax") c.grad = {false};
    DYNAMIC_SECTION(c.name << at::IntArrayRef(c.shapes[0])) { check_op(c, 24); }
  }
}

TEST_CASE("Reductions of sharded dims communicate when their result is used, not before", "[reduction]") {
  const auto mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({2, 3}, at::kDouble), mesh, {Shard(0)});  // two of four ranks hold nothing
  struct Row {
    const char* op;
    ReduceOp kind;
  };
  for (const Row& row :
       {Row{"aten::sum", ReduceOp::kSum}, Row{"aten::mean", ReduceOp::kSum}, Row{"aten::prod", ReduceOp::kProduct},
        Row{"aten::max", ReduceOp::kMax}, Row{"aten::amin", ReduceOp::kMin}, Row{"aten::all", ReduceOp::kMin},
        Row{"aten::any", ReduceOp::kMax}, Row{"aten::nansum", ReduceOp::kSum}}) {
    CAPTURE(row.op);
    CHECK(meta_for_read(call_op(row.op, {x})[0]).spec->placements() == Placements{Partial(row.kind)});
  }
  CommDebugMode comm;
  const auto [least, most] = at::aminmax(x);
  CHECK(comm.total() == 0);
  CHECK(meta_for_read(least).spec->placements() == Placements{Partial(ReduceOp::kMin)});
  CHECK(meta_for_read(most).spec->placements() == Placements{Partial(ReduceOp::kMax)});
}

TEST_CASE("aminmax along all dims and each, of empty parts and in half types", "[reduction]") {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kLong, at::kByte}) {
    CAPTURE(dtype);
    const auto full = at::randint(1, 9, {2, 7}, at::kLong).to(dtype);
    for (const DeviceMesh& mesh : test_meshes()) {
      for (const Placement& p :
           {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate()), Placement(Partial())}) {
        if (p.is_partial() && (dtype == at::kByte || dtype == at::kHalf))
          continue;  // addends of these dtypes do not sum exactly
        CAPTURE(to_string(p));
        Placements placements(mesh.ndim(), Replicate());
        placements.back() = p;
        const auto x = lay_out(full, mesh, placements);
        for (const std::optional<int64_t> dim : {std::optional<int64_t>(), std::optional<int64_t>(0), {1}, {-1}}) {
          for (const bool keepdim : {false, true}) {
            const auto [least, most] = at::aminmax(x, dim, keepdim);
            const auto [expected_least, expected_most] = at::aminmax(full, dim, keepdim);
            CHECK(difference(least, expected_least) == std::nullopt);
            CHECK(difference(most, expected_most) == std::nullopt);
          }
        }
      }
    }
  }
}

TEST_CASE("aminmax of an empty tensor along a dim of one element, held by one rank", "[reduction]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto x = distribute_tensor(at::randint(1, {0, 1, 1}, at::kLong), mesh, {Shard(2)});
  const auto [least, most] = at::aminmax(x, -1, false);
  CHECK(least.sizes() == at::IntArrayRef({0, 1}));
  CHECK(full_tensor(most).sizes() == at::IntArrayRef({0, 1}));
}

TEST_CASE("nansum: integer Partials pass, floating ones are reduced first", "[reduction]") {
  const auto mesh = test_meshes()[0];
  const auto placements = [](const at::Tensor& t) { return meta_for_read(t).spec->placements(); };
  const at::Tensor integers = at::randint(-9, 9, {5, 3}, at::kLong);
  const at::Tensor sum = lay_out(integers, mesh, {Partial()}).nansum();
  CHECK(placements(sum) == Placements{Partial()});
  CHECK(difference(sum, integers.nansum()) == std::nullopt);
  // If an addend is nan, the sum of its element is nan and is skipped, together with its other addends.
  at::Tensor numbers = at::rand({5, 3}, at::kDouble);
  at::Tensor addends = lay_out(numbers, mesh, {Partial()});
  mutable_local_tensors(addends)[1][2][1] = std::numeric_limits<double>::quiet_NaN();
  numbers[2][1] = std::numeric_limits<double>::quiet_NaN();
  CHECK(difference(addends.nansum(), numbers.nansum()) == std::nullopt);
}

TEST_CASE("Empty shards do not affect minima and maxima of any dtype", "[reduction]") {
  const auto mesh = test_meshes()[0];
  for (const auto dtype : {at::kByte, at::kShort, at::kLong, at::kFloat, at::kHalf, at::kBool}) {
    const auto full = at::randint(dtype == at::kBool ? 1 : 3, 9, {2, 3}, at::kLong).to(dtype);
    CAPTURE(dtype);
    for (const char* op : {"aten::amax", "aten::amin", "aten::max", "aten::min"}) {
      CHECK(difference(call_op(op, {lay_out(full, mesh, {Shard(0)})})[0], call_op(op, {full})[0]) == std::nullopt);
    }
  }
  const auto empty = lay_out(at::rand({0, 3}, at::kDouble), mesh, {Shard(0)});
  CHECK_THROWS_AS(call_op("aten::max", {empty}), c10::Error);
  CHECK_THROWS_AS(call_op("aten::amax", {empty, Dims{0}}), c10::Error);
  auto out = lay_out(at::rand({3}, at::kDouble), mesh, {Replicate()});
  const auto full = at::rand({2, 3}, at::kDouble);
  call_op("aten::amax.out", {lay_out(full, mesh, {Shard(0)}), Dims{0}, false, out});
  CHECK(difference(out, call_op("aten::amax", {full, Dims{0}})[0]) == std::nullopt);
}

TEST_CASE("Integers and bools", "[reduction]") {
  for (const char* op :
       {"aten::sum", "aten::prod", "aten::any", "aten::all", "aten::max", "aten::count_nonzero", "aten::nansum"}) {
    for (const auto dtype : {at::kInt, at::kLong, at::kBool, at::kByte}) {
      if (std::string(op) == "aten::nansum" && dtype == at::kBool) continue;
      OpCase c = reduction(op, {5, 3});
      c.make = [dtype](size_t, const std::vector<int64_t>& s) { return at::randint(0, 3, s, at::kLong).to(dtype); };
      DYNAMIC_SECTION(op << dtype) { check_op(c, 12); }
    }
  }
  const auto mesh = test_meshes()[0];
  const auto full = at::randint(0, 9, {5, 3}, at::kInt);
  CHECK(difference(lay_out(full, mesh, {Partial()}).sum(), full.sum()) == std::nullopt);
  const auto longs = at::randint(0, 9, {5, 3}, at::kLong);
  CHECK(meta_for_read(lay_out(longs, mesh, {Partial()}).sum()).spec->has_partial());
}

TEST_CASE("A mean of half precision does not overflow more than on one device", "[reduction]") {
  const auto mesh = test_meshes()[2];
  const auto full = at::full({1000, 10}, 3e4, at::kHalf);
  CHECK(difference(lay_out(full, mesh, {Shard(0)}).mean(), full.mean(), 1e-3) == std::nullopt);
}

TEST_CASE("Norms", "[reduction][norm]") {
  for (const double p : {0.0, 1.0, 2.0, 3.0, 0.5, -1.0, kInf, -kInf}) {
    OpCase c = reduction("aten::linalg_vector_norm", {5, 3}, {p});
    c.grad = {p > 0};
    DYNAMIC_SECTION("p = " << p) {
      check_op(c, 24);
      OpCase along = reduction("aten::linalg_vector_norm", {5, 3}, {p, Dims{0}, true});
      along.grad = c.grad;
      along.strided_inputs = true;
      check_op(along, 24);
      OpCase old = reduction("aten::norm.ScalarOpt_dim", {5, 3}, {p, Dims{1}, false});
      old.grad = c.grad;
      check_op(old, 24);
    }
  }
  check_op(reduction("aten::norm.Scalar", {5, 3}));
  OpCase complex = reduction("aten::linalg_vector_norm", {5, 3});
  complex.make = [](size_t, const std::vector<int64_t>& s) { return at::randn(s, at::kComplexDouble); };
  check_op(complex, 12);
  const auto mesh = test_meshes()[0];
  const auto half = at::full({4000}, 100, at::kHalf);  // the sum of squares is beyond half precision
  CHECK(difference(lay_out(half, mesh, {Shard(0)}).norm(), half.norm(), 1e-3) == std::nullopt);
}

TEST_CASE("The norm of a sharded gradient costs one all-reduce of one number", "[reduction][norm]") {
  const auto& mesh = test_meshes()[3];
  const auto full = at::rand({7, 5}, at::kDouble);
  const auto x = lay_out(full, mesh, {Shard(0), Shard(1)});
  Collectives seen;
  {
    ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&seen); });
    CHECK(x.norm(2).item<double>() == Approx(full.norm(2).item<double>()).epsilon(1e-12));
  }
  REQUIRE(seen.events.size() == 1);
  CHECK(seen.events[0].collective == Collective::kAllReduce);
  CHECK(seen.events[0].bytes <= 2 * 8);
}

TEST_CASE("Reductions in an abstract world", "[reduction]") {
  const DeviceMesh mesh(World::abstract(64), {8, 8});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{1000, 30};
  const auto x = from_local({}, mesh, {Shard(0), Replicate()}, options);
  CHECK(x.mean().dim() == 0);
  CHECK(x.amax(1).sizes() == at::IntArrayRef({1000}));
  CHECK(x.norm().dim() == 0);
  CHECK(std::get<1>(x.topk(3)).sizes() == at::IntArrayRef({1000, 3}));
}

TEST_CASE("Reductions on a rank with neither rows nor columns", "[reduction]") {
  const auto mesh = test_meshes()[3];  // (2, 3): of [1, 4], rank (1, 2) has [0, 0]
  const auto full = at::rand({1, 4}, at::kDouble);
  const auto x = lay_out(full, mesh, {Shard(0), Shard(1)});
  const c10::List<int64_t> dim({1});
  for (const auto& [op, args] :
       std::vector<std::pair<std::string, std::vector<c10::IValue>>>{{"aten::amax", {dim}},
                                                                     {"aten::amin", {dim}},
                                                                     {"aten::softmax.int", {1}},
                                                                     {"aten::log_softmax.int", {1}},
                                                                     {"aten::sum.dim_IntList", {dim}},
                                                                     {"aten::mean.dim", {dim}},
                                                                     {"aten::max", {}},
                                                                     {"aten::min", {}},
                                                                     {"aten::all.dim", {1}},
                                                                     {"aten::any.dim", {1}},
                                                                     {"aten::logsumexp", {dim}},
                                                                     {"aten::prod.dim_int", {1}},
                                                                     {"aten::count_nonzero", {1}},
                                                                     {"aten::nansum", {dim}},
                                                                     {"aten::argmax", {1}}}) {
    CAPTURE(op);
    std::vector<c10::IValue> plain = {full}, distributed = {x};
    plain.insert(plain.end(), args.begin(), args.end());
    distributed.insert(distributed.end(), args.begin(), args.end());
    CHECK(difference(call_op(op, distributed)[0], call_op(op, plain)[0]) == std::nullopt);
  }
  for (const double p :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(), 0., 1., 2., 3.}) {
    CAPTURE(p);
    CHECK(difference(x.norm(p, 1), full.norm(p, 1)) == std::nullopt);
  }
}

TEST_CASE("Norms of complex half precision keep the imaginary part", "[norm]") {
  const auto mesh = test_meshes()[0];
  const auto full = at::tensor({3., 6., 0., 5.}, at::kDouble).to(at::kComplexFloat) * c10::complex<double>(1, 2);
  const auto half = full.to(at::kComplexHalf);
  for (const double p : {0., 1., 2., 3., std::numeric_limits<double>::infinity()}) {
    CAPTURE(p);
    const auto got = lay_out(half, mesh, {Shard(0)}).norm(p);
    CHECK(got.scalar_type() == at::kHalf);
    CHECK(full_tensor(got).item<double>() == Approx(full.norm(p).item<double>()).epsilon(0.01));
  }
}

}  // namespace dtensor::testing
