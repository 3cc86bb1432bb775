// Solvers and stencils.
#include <memory>
#include <vector>

#include "benchmarks/patterns/families.h"
#include "dtensor/dtensor.h"
#include "examples/models/solvers.h"
#include "examples/models/stencil.h"

namespace dtensor::benchmarks {

Pattern conjugate_gradient(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), size = 128 * scale;
  const auto solver = std::make_shared<examples::ConjugateGradient>(randn({size, size}, mesh, {Shard(0)}),
                                                                    randn({size}, mesh, {Shard(0)}));
  // The first residual's norm is asked for in the first round.
  return loop(
      mesh, [=] { solver->iterate(); }, all_gather(static_cast<double>(size * 4), n) + 2 * all_reduce(4, n),
      all_reduce(4, n));
}

Pattern k_means(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), width = 4 * scale, clusters = 10;
  const auto points = randn({1024 * scale, width}, mesh, {Shard(0)});
  const auto centers = std::make_shared<at::Tensor>(randn({clusters, width}, mesh));
  return loop(
      mesh, [=] { *centers = examples::k_means_step(points, *centers); },
      all_reduce(static_cast<double>(clusters * (width + 1) * 4), n));
}

Pattern power_iteration(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), width = 16 * scale;
  const auto matrix = randn({1024 * scale, width}, mesh, {Shard(0)});
  const auto vector = std::make_shared<at::Tensor>(randn({width}, mesh));
  return loop(
      mesh, [=] { *vector = examples::power_step(matrix, *vector); }, all_reduce(static_cast<double>(width * 4), n));
}

Pattern subspace_iteration(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), width = 16 * scale, vectors = 4;
  const auto matrix = randn({1024 * scale, width}, mesh, {Shard(0)});
  const auto found = std::make_shared<at::Tensor>(randn({width, vectors}, mesh));
  return loop(
      mesh, [=] { *found = examples::subspace_step(matrix, *found); },
      all_reduce(static_cast<double>(width * vectors * 4), n));
}

Pattern tall_qr(const DeviceMesh& mesh, int64_t scale) {
  const int64_t n = mesh.size(), width = 4 * scale;
  const auto matrix = randn({128 * scale * n, width}, mesh, {Shard(0)});
  return loop(
      mesh, [=] { examples::tall_qr(matrix, n); }, all_gather(static_cast<double>(n * width * width * 4), n));
}

namespace {

// `step` on a grid in tiles, whose borders go to the neighbours: in one exchange per axis, or (`at_once`) in one for
// both with the corners. `width`: the declared ghost width of the grid; {}: none.
Pattern stencil(const DeviceMesh& mesh, int64_t scale, at::Tensor (*step)(const at::Tensor&, double), bool at_once,
                const std::vector<int64_t>& width = {}) {
  const int64_t tile = 16 * scale, rows = mesh.size(0), columns = mesh.size(1);
  const auto grid = std::make_shared<at::Tensor>(randn({rows * tile, columns * tile}, mesh, {Shard(0), Shard(1)}));
  set_ghost_width(*grid, width);
  const auto borders = static_cast<double>(2 * tile * 4);
  return loop(
      mesh,
      [=] {
        *grid = step(*grid, 0.1);
        set_ghost_width(*grid, width);
      },
      at_once ? Traffic{1, 2 * borders + 4 * 4} : 2 * Traffic{1, borders});
}

}  // namespace

Pattern stencil_by_roll(const DeviceMesh& mesh, int64_t scale) {
  return stencil(mesh, scale, examples::heat_by_roll, false);
}
Pattern stencil_by_roll_with_width(const DeviceMesh& mesh, int64_t scale) {
  return stencil(mesh, scale, examples::heat_by_roll, true, {1, 1});
}
Pattern stencil_by_pad(const DeviceMesh& mesh, int64_t scale) {
  return stencil(mesh, scale, examples::heat_by_pad, true);
}
Pattern stencil_in_place(const DeviceMesh& mesh, int64_t scale) {
  return stencil(mesh, scale, examples::heat_in_place, true, {1, 1});
}

}  // namespace dtensor::benchmarks
