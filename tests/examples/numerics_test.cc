// Solvers, stencils and sampling in plain ATen compute on a mesh what they compute on one device.
#include "examples/models/sampling.h"
#include "examples/models/solvers.h"
#include "examples/models/stencil.h"
#include "tests/examples/against_one_device.h"

namespace dtensor {
namespace {

std::vector<DeviceMesh> lines() {
  return {DeviceMesh(World::local(4), {4}, {"rows"}), DeviceMesh(World::local(3), {3}, {"rows"})};
}

TEST_CASE("conjugate gradient by rows solves the system", "[examples]") {
  const auto random = doubles({14, 14}), matrix = random.mm(random.t()) + 14 * torch::eye(14, torch::kDouble);
  const auto right = doubles({14});
  for (const DeviceMesh& mesh : lines()) {
    check_program(mesh, {{matrix, {Shard(0)}}, {right, {Shard(0)}}}, [](const Tensors& in) {
      examples::ConjugateGradient solver(in[0], in[1]);
      for (int i = 0; i < 6; ++i) solver.iterate();
      return solver.x;
    });
    examples::ConjugateGradient solver(distribute_tensor(matrix, mesh, {Shard(0)}),
                                       distribute_tensor(right, mesh, {Shard(0)}));
    for (int i = 0; i < 14; ++i) solver.iterate();
    CHECK(torch::allclose(matrix.mv(full_tensor(solver.x)), right, 1e-9, 1e-9));
  }
}

TEST_CASE("k-means, power iteration and QR of a tall matrix by rows", "[examples]") {
  const auto points = doubles({37, 3}), tall = doubles({48, 3});
  for (const DeviceMesh& mesh : lines()) {
    check_program(mesh, {{points, {Shard(0)}}, {points.slice(0, 0, 5), {Replicate()}}}, [](const Tensors& in) {
      auto centers = in[1];
      for (int i = 0; i < 4; ++i) centers = examples::k_means_step(in[0], centers);
      return centers;
    });
    check_program(mesh, {{points, {Shard(0)}}, {points[0], {Replicate()}}}, [](const Tensors& in) {
      auto vector = in[1];
      for (int i = 0; i < 4; ++i) vector = examples::power_step(in[0], vector);
      return vector;
    });
    const ReplicateUnsupported scope;  // QR has no rule
    check_program(mesh, {{points, {Shard(0)}}, {points.slice(0, 0, 3).slice(1, 0, 2), {Replicate()}}},
                  [](const Tensors& in) {
                    auto vectors = in[1];
                    for (int i = 0; i < 4; ++i) vectors = examples::subspace_step(in[0], vectors);
                    return vectors;
                  });
    check_program(mesh, {{tall, {Shard(0)}}}, [](const Tensors& in) { return examples::tall_qr(in[0], 12); });
  }
}

TEST_CASE("a five-point stencil on tiles of a grid", "[examples]") {
  for (const auto& step : {examples::heat_by_roll, examples::heat_by_pad, examples::heat_in_place}) {
    for (const DeviceMesh& mesh : {DeviceMesh(World::local(16), {4, 4}, {"rows", "columns"}),
                                   DeviceMesh(World::local(6), {2, 3}, {"rows", "columns"})}) {
      for (const auto& sizes : {std::vector<int64_t>{12, 12}, {13, 10}, {5, 3}}) {
        check_program(mesh, {{doubles(sizes), {Shard(0), Shard(1)}}}, [&](const Tensors& in) {
          auto grid = in[0];
          if (is_dtensor(grid)) set_ghost_width(grid, {1, 1});
          for (int i = 0; i < 3; ++i) grid = step(grid, 0.1);
          return grid;
        });
      }
    }
  }
}

TEST_CASE("the best and the k best of scores whose vocabulary is sharded", "[examples]") {
  const auto scores = doubles({4, 31});
  for (const DeviceMesh& mesh : lines()) {
    check_program(mesh, {{scores, {Shard(1)}}}, [](const Tensors& in) { return examples::greedy(in[0]); });
    const auto spread = distribute_tensor(scores, mesh, {Shard(1)});
    const auto best = std::get<1>(scores.topk(3, -1));
    for (int i = 0; i < 20; ++i) {
      const auto id = full_tensor(examples::sample_top_k(spread, 3));
      CHECK(id.eq(best).any(1).all().item<bool>());
    }
    // With only one candidate nothing is left to chance.
    CHECK(torch::equal(full_tensor(examples::sample_top_k(spread, 1)), examples::greedy(scores)));
  }
}

}  // namespace
}  // namespace dtensor
