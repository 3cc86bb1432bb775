// Batches of matrices: the batch stays split in decompositions, systems of equations, functions of matrices, and in
// their gradients.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/geqrf.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/linalg_cond.h>
#include <ATen/ops/linalg_cross.h>
#include <ATen/ops/linalg_det.h>
#include <ATen/ops/linalg_eig.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvals.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_householder_product.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linalg_inv_ex.h>
#include <ATen/ops/linalg_ldl_factor_ex.h>
#include <ATen/ops/linalg_ldl_solve.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/linalg_lu.h>
#include <ATen/ops/linalg_lu_factor.h>
#include <ATen/ops/linalg_lu_solve.h>
#include <ATen/ops/linalg_matrix_exp.h>
#include <ATen/ops/linalg_matrix_norm.h>
#include <ATen/ops/linalg_matrix_power.h>
#include <ATen/ops/linalg_matrix_rank.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_slogdet.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_solve_ex.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/lu_unpack.h>
#include <ATen/ops/ormqr.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/triangular_solve.h>
#include <ATen/ops/zeros.h>

#include <functional>
#include <tuple>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "ops/support/core_dims.h"
#include "propagation/propagate.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;
using Fn = std::function<Tensors(const Tensors&)>;
using Shapes = std::vector<std::vector<int64_t>>;

template <typename Tuple>
Tensors tensors(const Tuple& t) {
  return std::apply([](auto&... x) { return Tensors{x...}; }, t);
}

// Far from singular, with distinct singular values.
at::Tensor matrices(const std::vector<int64_t>& shape) {
  at::Tensor a = at::rand(shape, at::kDouble);
  if (shape.size() < 2) return a;
  at::Tensor diagonal = a.diagonal(0, -2, -1);
  diagonal.add_(at::rand({1}, at::kDouble) + 2);
  if (diagonal.size(-1) > 1) diagonal.select(-1, 0).add_(2);
  return a;
}
at::Tensor symmetric(const at::Tensor& a) { return a.matmul(a.mT()); }

bool batched(const std::vector<Placement>& p) {
  for (const Placement& x : p) {
    if (x != p[0] || (x != Shard(0) && x != Replicate())) return false;
  }
  return true;
}
bool whole(const std::vector<Placement>& p) {
  for (const Placement& x : p) {
    if (x != Replicate()) return false;
  }
  return true;
}

// `exchanges`: the operator reports which matrix is singular, for which all ranks must exchange, or there is no batch.
void check(const char* name, const Shapes& shapes, const Fn& fn, bool exchanges = false) {
  OpCase c{name, fn, shapes};
  c.make = [](size_t, const auto& shape) { return matrices(shape); };
  c.silent = exchanges ? whole : batched;
  c.tolerance = 1e-7;
  check_op(c, 15);
}

const Shapes kOne = {{5, 3, 3}}, kTall = {{5, 4, 3}}, kTwo = {{5, 3, 3}, {5, 3, 2}};

TEST_CASE("decompositions keep the batch split", "[ops][linear_algebra]") {
  check("svd", kTall, [](auto& t) {
    const auto [u, s, vh] = at::linalg_svd(t[0], false);
    return Tensors{s, u.mul(s.unsqueeze(-2)).matmul(vh)};
  });
  check("svdvals", kTall, [](auto& t) { return Tensors{at::linalg_svdvals(t[0])}; });
  check("full svd", {{5, 2, 3, 3}}, [](auto& t) {
    const auto [u, s, vh] = at::linalg_svd(t[0], true);
    return Tensors{s};
  });
  check("eigh", kOne, [](auto& t) {
    const auto [w, v] = at::linalg_eigh(symmetric(t[0]));
    return Tensors{w, v * v};
  });
  check("eigvalsh", kOne, [](auto& t) { return Tensors{at::linalg_eigvalsh(symmetric(t[0]))}; });
  check("eig", kOne, [](auto& t) {
    const auto [w, v] = at::linalg_eig(t[0]);
    return Tensors{w.sum(-1), v.abs().square().sum(-2)};
  });
  check("eigvals", kOne, [](auto& t) { return Tensors{at::linalg_eigvals(t[0]).abs().sum(-1)}; });
  check("qr", kTall, [](auto& t) { return tensors(at::linalg_qr(t[0])); });
  check("r of qr", kTall, [](auto& t) { return Tensors{std::get<1>(at::linalg_qr(t[0].detach(), "r"))}; });
  check("geqrf and its product", kTall, [](auto& t) {
    const auto [a, tau] = at::geqrf(t[0].detach());
    return Tensors{a, tau, at::linalg_householder_product(a, tau), at::ormqr(a, tau, t[0].detach())};
  });
  check("householder_product", {{5, 4, 3}, {5, 2}},
        [](auto& t) { return Tensors{at::linalg_householder_product(t[0], t[1])}; });
  check("cholesky_ex", kOne, [](auto& t) { return tensors(at::linalg_cholesky_ex(symmetric(t[0]))); });
  check(
      "cholesky", kOne, [](auto& t) { return Tensors{at::linalg_cholesky(symmetric(t[0]), true)}; }, true);
  check("cholesky_inverse", kOne, [](auto& t) {
    const at::Tensor l = std::get<0>(at::linalg_cholesky_ex(symmetric(t[0])));
    return Tensors{l, at::cholesky_inverse(l)};
  });
  check("lu", kTall, [](auto& t) { return tensors(at::linalg_lu(t[0])); });
  check(
      "lu_factor, lu_unpack", kOne,
      [](auto& t) {
        const auto [lu, pivots] = at::linalg_lu_factor(t[0]);
        return tensors(at::lu_unpack(lu, pivots));
      },
      true);
  check("ldl", {{5, 3, 3}, {5, 3, 2}}, [](auto& t) {
    const auto [ld, pivots, info] = at::linalg_ldl_factor_ex(symmetric(t[0]).detach());
    return Tensors{ld, pivots, info, at::linalg_ldl_solve(ld, pivots, t[1].detach())};
  });
}

TEST_CASE("functions of matrices keep the batch split", "[ops][linear_algebra]") {
  check("det", kOne, [](auto& t) { return Tensors{at::linalg_det(t[0])}; });
  check("slogdet", kOne, [](auto& t) { return tensors(at::linalg_slogdet(t[0])); });
  check("inv_ex", kOne, [](auto& t) { return tensors(at::linalg_inv_ex(t[0])); });
  check(
      "inv", kOne, [](auto& t) { return Tensors{at::linalg_inv(t[0])}; }, true);
  check("pinv", kTall, [](auto& t) { return Tensors{at::linalg_pinv(t[0])}; });
  check("pinv of hermitian", kOne, [](auto& t) { return Tensors{at::linalg_pinv(symmetric(t[0]), 1e-12, true)}; });
  check("matrix_exp", kOne, [](auto& t) { return Tensors{at::linalg_matrix_exp(t[0])}; });
  check("matrix_power", kOne, [](auto& t) { return Tensors{at::linalg_matrix_power(t[0], 3)}; });
  check(
      "matrix_rank", kOne, [](auto& t) { return Tensors{at::linalg_matrix_rank(t[0].detach(), 1e-5)}; }, true);
  check("nuclear norm", kTall, [](auto& t) { return Tensors{at::linalg_matrix_norm(t[0], "nuc")}; });
  check("cond", kOne, [](auto& t) { return Tensors{at::linalg_cond(t[0])}; });
  check("two batch dims", {{3, 5, 2, 2}}, [](auto& t) { return Tensors{at::linalg_det(t[0])}; });
  check(
      "no batch", {{4, 4}},
      [](auto& t) {
        return Tensors{at::linalg_det(t[0]), at::linalg_matrix_exp(t[0])};
      },
      true);
  check("an empty batch", {{0, 3, 3}}, [](auto& t) { return tensors(at::linalg_inv_ex(t[0])); });
  OpCase cross{"cross", [](auto& t) { return Tensors{at::linalg_cross(t[0], t[1], 1)}; }, {{5, 3, 2}, {5, 3, 2}}};
  cross.silent = batched;
  check_op(cross, 30);
}

TEST_CASE("systems of equations keep the batch split", "[ops][linear_algebra]") {
  check("solve_ex", kTwo, [](auto& t) { return tensors(at::linalg_solve_ex(t[0], t[1])); });
  check("solve for vectors", {{5, 3, 3}, {5, 3}},
        [](auto& t) { return Tensors{std::get<0>(at::linalg_solve_ex(t[0], t[1]))}; });
  check(
      "solve", kTwo, [](auto& t) { return Tensors{at::linalg_solve(t[0], t[1])}; }, true);
  check("lstsq", {{5, 4, 3}, {5, 4, 2}}, [](auto& t) {
    const auto [x, residuals, rank, values] = at::linalg_lstsq(t[0], t[1]);
    return Tensors{x, rank};
  });
  check("lstsq by qr", {{5, 4, 3}, {5, 4, 2}},
        [](auto& t) { return tensors(at::linalg_lstsq(t[0].detach(), t[1].detach(), std::nullopt, "gels")); });
  check("lstsq by svd", {{5, 4, 3}, {5, 4, 2}},
        [](auto& t) { return tensors(at::linalg_lstsq(t[0].detach(), t[1].detach(), std::nullopt, "gelsd")); });
  check(
      "lu_solve", kTwo,
      [](auto& t) {
        const auto [lu, pivots] = at::linalg_lu_factor(t[0]);
        return Tensors{at::linalg_lu_solve(lu, pivots, t[1])};
      },
      true);
  check("solve_triangular", kTwo,
        [](auto& t) { return Tensors{at::linalg_solve_triangular(t[0].triu(), t[1], true)}; });
  check("triangular_solve", kTwo, [](auto& t) { return tensors(at::triangular_solve(t[1], t[0])); });
  check("cholesky_solve", kTwo, [](auto& t) { return Tensors{at::cholesky_solve(t[1], t[0].tril())}; });
}

// One matrix for all: each rank solves for its own right hand sides.
TEST_CASE("right hand sides of one system stay split", "[ops][linear_algebra]") {
  const auto check_sides = [](const char* name, const Shapes& shapes, const Fn& fn, size_t sides, int64_t dim) {
    OpCase c{name, fn, shapes};
    c.make = [](size_t, const auto& shape) { return matrices(shape); };
    c.tolerance = 1e-7;
    c.silent = [=](const std::vector<Placement>& p) {
      for (size_t i = 0; i < p.size(); ++i) {
        if (i == sides ? p[i] != Shard(dim) && p[i] != Replicate() : p[i] != Replicate()) return false;
      }
      return true;
    };
    check_op(c, 15);
  };
  const Shapes columns = {{3, 3}, {3, 5}}, rows = {{3, 3}, {5, 3}}, batches = {{2, 3, 3}, {2, 3, 5}};
  check_sides(
      "solve_ex", columns, [](auto& t) { return tensors(at::linalg_solve_ex(t[0], t[1])); }, 1, 1);
  check_sides(
      "solve_ex from the right", rows, [](auto& t) { return tensors(at::linalg_solve_ex(t[0], t[1], false)); }, 1, 0);
  check_sides(
      "solve_triangular", batches,
      [](auto& t) { return Tensors{at::linalg_solve_triangular(t[0].triu(), t[1], true)}; }, 1, 2);
  check_sides(
      "solve_triangular from the right", rows,
      [](auto& t) { return Tensors{at::linalg_solve_triangular(t[0].triu(), t[1], true, false)}; }, 1, 0);
  check_sides(
      "triangular_solve", {{3, 5}, {3, 3}}, [](auto& t) { return tensors(at::triangular_solve(t[0], t[1])); }, 0, 1);
  check_sides(
      "cholesky_solve", {{3, 5}, {3, 3}}, [](auto& t) { return Tensors{at::cholesky_solve(t[0], t[1].tril())}; }, 0, 1);
  check_sides(
      "lstsq", {{4, 3}, {4, 5}},
      [](auto& t) {
        const auto [x, residuals, rank, values] = at::linalg_lstsq(t[0], t[1]);
        return Tensors{x, rank};
      },
      1, 1);
  check_sides(
      "lstsq, more unknowns", {{3, 4}, {3, 5}},
      [](auto& t) { return tensors(at::linalg_lstsq(t[0].detach(), t[1].detach(), std::nullopt, "gelsd")); }, 1, 1);
  const auto [lu, pivots] = at::linalg_lu_factor(matrices({3, 3}));
  check_sides(
      "lu_solve", {{3, 5}},
      [lu = lu, pivots = pivots](auto& t) {
        const auto whole = [&](const at::Tensor& x) {
          return is_dtensor(t[0]) ? distribute_tensor(x, DTensor(t[0]).mesh(), {}, std::nullopt) : x;
        };
        return Tensors{at::linalg_lu_solve(whole(lu), whole(pivots), t[0])};
      },
      0, 1);
}

// One matrix for a batch of right hand sides: its factorisation is replicated, also if a rank has no right hand side.
TEST_CASE("linear algebra with broadcast batches", "[ops][linear_algebra]") {
  const auto sides = [](const std::vector<Placement>& p) { return p[0] == Replicate() && p[1] == Shard(0); };
  for (const std::vector<int64_t>& one : {std::vector<int64_t>{3, 3}, {1, 3, 3}}) {
    OpCase c{"solve_ex", [](auto& t) { return tensors(at::linalg_solve_ex(t[0], t[1])); }, {one, {5, 3, 2}}};
    c.make = [](size_t, const auto& shape) { return matrices(shape); };
    c.silent = sides;
    check_op(c, 40);
    c.name = "solve_triangular";
    c.fn = [](auto& t) { return Tensors{at::linalg_solve_triangular(t[0].tril(), t[1], false)}; };
    check_op(c, 40);
  }
}

TEST_CASE("a singular matrix is an error on every rank that names the matrix", "[ops][linear_algebra]") {
  for (const auto& mesh : test_meshes()) {
    at::Tensor a = matrices({5, 3, 3});
    a[4].zero_();
    const auto x = distribute_tensor(a, mesh, Placements(mesh.ndim(), Shard(0)));
    CHECK_THROWS_WITH(at::linalg_inv(x), Catch::Contains("Batch element 4") && Catch::Contains("singular"));
    CHECK_THROWS_WITH(at::linalg_inv_ex(x, /*check_errors=*/true), Catch::Contains("Batch element 4"));
    CHECK_THROWS_WITH(at::linalg_cholesky_ex(x, false, /*check_errors=*/true), Catch::Contains("Batch element 4"));
    at::linalg_inv_ex(x);
  }
}

TEST_CASE("linear algebra of complex matrices", "[ops][linear_algebra]") {
  OpCase c{"complex",
           [](auto& t) {
             const auto [w, v] = at::linalg_eigh(t[0].matmul(t[0].mH()));
             return Tensors{w, at::linalg_det(t[0]), std::get<0>(at::linalg_inv_ex(t[0]))};
           },
           {{5, 3, 3}}};
  c.make = [](size_t, const auto& shape) { return at::complex(matrices(shape), at::rand(shape, at::kDouble)); };
  c.silent = batched;
  check_op(c, 15);
}

TEST_CASE("operators with core dims infer their results once per decision", "[ops][linear_algebra]") {
  int inferred = 0;
  const auto metas = [&](const OpCall& call) {
    ++inferred;
    return OutputMetas{{call.inputs[0]->meta()}, {-1}, {}};
  };
  const OpRule rule = core_dims_rule({.op = "aten::matrix_exp", .equation = "...MN->...MN", .metas = metas});
  const auto input = Spec::get(test_meshes()[1], {Shard(0), Replicate()}, ::dtensor::Shape{4, 3, 3}, at::kDouble);
  const auto decision = propagate(OpCall::make("aten::matrix_exp", {input}), std::make_shared<const OpRule>(rule));
  CHECK(decision->outputs.at(0) == input);
  CHECK(inferred == 1);
}

}  // namespace
}  // namespace dtensor::testing
