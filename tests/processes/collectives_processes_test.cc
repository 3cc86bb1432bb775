// Collectives on plain tensors between processes: what the same calls give in one process, on this process's rank.
#include <ATen/ATen.h>

#include <vector>

#include "dtensor/collectives.h"
#include "dtensor/dtensor.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor numbers_of(c10::IntArrayRef sizes, int64_t rank) {
  return (at::arange(c10::multiply_integers(sizes), at::kDouble) + 100 * static_cast<double>(rank)).view(sizes).sin();
}

// One [rows[position along tp], 3] per owned rank.
Tensors parts_of(const DeviceMesh& mesh, const std::vector<int64_t>& rows) {
  Tensors parts;
  for (const int64_t rank : mesh.local_ranks())
    parts.push_back(numbers_of({rows[mesh.local_rank(rank, mesh.dim("tp"))], 3}, rank).requires_grad_());
  return parts;
}

// Results and gradients of a call on `world`, those of rank r at [r].
template <typename Call>
Tensors run_on(const World& world, std::vector<int64_t> shape, const std::vector<int64_t>& rows, const Call& call) {
  const DeviceMesh mesh(world, std::move(shape), {"dp", "tp"});
  const Tensors inputs = parts_of(mesh, rows);
  const Tensors results = call(inputs, mesh);
  Tensor loss = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < results.size(); ++i)
    loss = loss + (results[i] * numbers_of(results[i].sizes(), 3 * mesh.local_ranks()[i])).sum();
  if (loss.requires_grad()) loss.backward();
  Tensors of_ranks(2 * world.size());
  for (size_t i = 0; i < results.size(); ++i) {
    of_ranks[2 * mesh.local_ranks()[i]] = results[i];
    of_ranks[2 * mesh.local_ranks()[i] + 1] = inputs[i].grad();
  }
  return of_ranks;
}

template <typename Call>
void check_as_on_twin(const std::vector<int64_t>& shape, const std::vector<int64_t>& rows, const Call& call) {
  const Tensors job = run_on(job_world(), shape, rows, call), twin = run_on(twin_world(), shape, rows, call);
  for (size_t i = 0; i < job.size(); ++i) {
    if (job[i].defined()) CHECK(at::equal(job[i], twin[i]));
  }
  const int64_t own = job_world().owned_ranks()[0];
  CHECK(job[2 * own].defined());
}

TEST_CASE("collectives over four processes have the results and gradients of one process", "[processes][collectives]") {
  check_as_on_twin({1, 4}, {2, 2, 2, 2}, [](const Tensors& t, const DeviceMesh& m) { return all_reduce(t, m, "tp"); });
  check_as_on_twin({1, 4}, {3, 0, 1, 2}, [](const Tensors& t, const DeviceMesh& m) {
    return all_gather_tensor(t, m, "tp", 0, {3, 0, 1, 2});
  });
  check_as_on_twin({1, 4}, {5, 5, 5, 5}, [](const Tensors& t, const DeviceMesh& m) {
    return reduce_scatter_tensor(t, m, "tp", 0, ReduceOp::kAvg, {0, 2, 1, 2});
  });
  check_as_on_twin({2, 2}, {4, 4}, [](const Tensors& t, const DeviceMesh& m) { return all_to_all_single(t, m, "tp"); });
  check_as_on_twin({2, 2}, {3, 1}, [](const Tensors& t, const DeviceMesh& m) {
    const std::vector<std::vector<int64_t>> sent{{1, 2}, {1, 0}}, received{{1, 1}, {2, 0}};
    AllToAllSplits splits;
    for (const int64_t rank : m.local_ranks()) {
      splits.input_split_sizes.push_back(sent[rank % 2]);
      splits.output_split_sizes.push_back(received[rank % 2]);
    }
    return all_to_all_single(t, m, "tp", splits);
  });
  check_as_on_twin({1, 4}, {2, 2, 2, 2}, [](const Tensors& t, const DeviceMesh& m) {
    return permute_tensor(t, m, "tp", {1, 2, 3, -1});
  });
}

TEST_CASE("broadcast, scatter and gather between four processes move the tensors of one position",
          "[processes][collectives]") {
  const DeviceMesh mesh(job_world(), {1, 4}, {"dp", "tp"});
  const int64_t own = mesh.local_ranks()[0];
  const Tensors mine{numbers_of({4, 3}, own)};
  CHECK(at::equal(broadcast(mine, mesh, "tp", 2)[0], numbers_of({4, 3}, 2)));
  CHECK(at::equal(scatter(mine, mesh, "tp", 1)[0], numbers_of({4, 3}, 1).narrow(0, own, 1)));
  const Tensor gathered = gather(mine, mesh, "tp", 3, 1)[0];
  CHECK(gathered.defined() == (own == 3));
  if (own == 3) {
    CHECK(at::equal(gathered.narrow(1, 3, 3), numbers_of({4, 3}, 1)));
  }
  barrier(mesh);
}

TEST_CASE("send_recv between two of four processes does not need the others", "[processes][collectives]") {
  const DeviceMesh mesh(job_world(), {4}, {"tp"});
  const int64_t own = mesh.local_ranks()[0];
  const Tensors mine{numbers_of({2, 3}, own)};
  // Rank 3 calls nothing; 0 sends to 1, and 1 to 2.
  if (own == 0 || own == 1) {
    const Tensor arrived = send_recv(mine, mesh, "tp", 0, 1)[0];
    CHECK(arrived.defined() == (own == 1));
    if (own == 1) CHECK(at::equal(arrived, numbers_of({2, 3}, 0)));
  }
  if (own == 1 || own == 2) {
    const Tensor arrived = send_recv(mine, mesh, "tp", 1, 2)[0];
    if (own == 2) CHECK(at::equal(arrived, numbers_of({2, 3}, 1)));
  }
  CHECK(all_reduce(mine, mesh, "tp", ReduceOp::kMax)[0].sizes() == mine[0].sizes());
}

}  // namespace
}  // namespace dtensor
