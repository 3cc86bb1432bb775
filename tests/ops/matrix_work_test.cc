// The FLOP of decompositions and systems of equations are counted, and are part of a layout's price.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/linalg_det.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_eigvalsh.h>
#include <ATen/ops/linalg_inv.h>
#include <ATen/ops/linalg_lu_factor.h>
#include <ATen/ops/linalg_matrix_exp.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/triangular_solve.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

constexpr int64_t kBatch = 8, kN = 6, kSides = 3;
constexpr double kCube = kN * kN * kN;

struct Case {
  const char* name;
  std::function<void(const at::Tensor& a, const at::Tensor& b)> run;
  double flops;  // of one matrix
};

std::vector<Case> cases() {
  const double side = kN * kN;
  return {
      {"cholesky", [](auto& a, auto&) { at::linalg_cholesky(a); }, kCube / 3},
      {"inverse", [](auto& a, auto&) { at::linalg_inv(a); }, 2 * kCube},
      {"lu", [](auto& a, auto&) { at::linalg_lu_factor(a); }, 2 * kCube / 3},
      {"det", [](auto& a, auto&) { at::linalg_det(a); }, 2 * kCube / 3},
      {"solve", [](auto& a, auto& b) { at::linalg_solve(a, b); }, 2 * kCube / 3 + 2 * side * kSides},
      {"solve a vector", [](auto& a, auto& b) { at::linalg_solve(a, b.select(2, 0)); }, 2 * kCube / 3 + 2 * side},
      {"solve from the right", [](auto& a, auto& b) { at::linalg_solve(a, b.mT(), /*left=*/false); },
       2 * kCube / 3 + 2 * side * kSides},
      {"triangle", [](auto& a, auto& b) { at::linalg_solve_triangular(a, b, true); }, side * kSides},
      {"triangular_solve", [](auto& a, auto& b) { at::triangular_solve(b, a); }, side * kSides},
      {"cholesky_solve", [](auto& a, auto& b) { at::cholesky_solve(b, a); }, 2 * side * kSides},
      {"eigh", [](auto& a, auto&) { at::linalg_eigh(a); }, 9 * kCube},
      {"svd", [](auto& a, auto&) { at::linalg_svd(a, false); }, 26 * kCube},
      {"svdvals", [](auto& a, auto&) { at::linalg_svdvals(a); }, 4 * kCube},
      {"qr", [](auto& a, auto&) { at::linalg_qr(a); }, 8 * kCube / 3},
      {"r", [](auto& a, auto&) { at::linalg_qr(a, "r"); }, 4 * kCube / 3},
      {"qr of tall matrices", [](auto&, auto& b) { at::linalg_qr(b); }, 4.0 * kSides * kSides * (kN - kSides / 3.0)},
      {"exponential", [](auto& a, auto&) { at::linalg_matrix_exp(a); }, 16 * kCube},
  };
}

}  // namespace

TEST_CASE("the FLOP for a batch of matrices are counted and shared if the batch is split", "[ops][linear_algebra]") {
  const at::Tensor a = at::eye(kN, at::kDouble) * 4 + at::ones({kBatch, kN, kN}, at::kDouble);
  const at::Tensor b = at::rand({kBatch, kN, kSides}, at::kDouble);
  const DeviceMesh& mesh = test_meshes()[0];
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    for (const bool split : {true, false}) {
      const Placements placements{split ? Shard(0) : Replicate()};
      const CommDebugMode comm;
      c.run(distribute_tensor(a, mesh, placements), distribute_tensor(b, mesh, placements));
      CHECK(comm.flops() == Approx(c.flops * kBatch / (split ? 4 : 1)));
      CHECK(comm.work_share() == Approx(split ? 1 : 4));
    }
  }
}

TEST_CASE("the QR of a tall matrix by rows takes fewer FLOP than on every rank", "[ops][linear_algebra]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor a = distribute_tensor(at::rand({400, 4}, at::kDouble), mesh, {Shard(0)});
  const CommDebugMode comm;
  at::linalg_qr(a);
  const double whole = 4. * 4 * 4 * (400 - 4 / 3.);
  CHECK(comm.flops() > whole / 4);
  CHECK(comm.flops() < whole / 2);
}

TEST_CASE("right hand sides move to the ranks of whole systems if that saves more than it costs",
          "[ops][linear_algebra]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"dp"});
  const auto layout_of_solution = [&](int64_t n) {
    const at::Tensor a = zeros({8, n, n}, mesh), b = zeros({8, n, 64}, mesh, {Shard(2)});
    return to_string(DTensor(at::linalg_solve(a, b)).placements());
  };
  CHECK(layout_of_solution(4) == "S(2)");
  CHECK(layout_of_solution(2048) == "S(0)");
}

}  // namespace dtensor::testing
