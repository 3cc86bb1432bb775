// Hooks of parameters that one rank has alone: what is communicated is the same on all ranks, and so are the values.
#include <torch/autograd.h>
#include <torch/types.h>

#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

Tensor sines(std::vector<int64_t> sizes, double shift = 0) {
  const Tensor t = torch::arange(c10::multiply_integers(sizes), torch::kDouble) + shift;
  return t.view(sizes).sin();
}

struct Job {
  DeviceMesh mesh{job_world(), {job_world().size()}, {"dp"}};
  bool is_first = DTensor(ones({1}, mesh)).mesh().local_ranks().front() == 0;
  std::vector<Tensor> plain, leaves;
  Tensor x0 = sines({8, 5});

  explicit Job(const Placement& layout) {
    for (int i = 0; i < 3; ++i) {
      plain.push_back(sines({5, 5}, i).requires_grad_());
      leaves.push_back(distribute_tensor(plain.back().detach(), mesh, {layout}).requires_grad_());
    }
  }
  static Tensor loss(const std::vector<Tensor>& leaves, Tensor x) {
    for (const Tensor& w : leaves) x = x.mm(w).tanh();
    return x.pow(2).sum();
  }
  Tensor loss() const { return loss(leaves, distribute_tensor(x0, mesh, {Shard(0)})); }
  Tensor plain_loss() const { return loss(plain, x0); }
  void check(int times) {
    for (int i = 0; i < times; ++i) plain_loss().backward();
    for (size_t i = 0; i < leaves.size(); ++i) {
      CHECK(DTensor(leaves[i].grad()).placements() == DTensor(leaves[i]).placements());
      CHECK(torch::allclose(full_tensor(leaves[i].grad()), plain[i].grad(), 1e-10, 1e-12));
    }
  }
};

// Of backwards with and without .grad.
std::vector<int64_t> calls_of_backwards(const Job& job) {
  std::vector<int64_t> calls;
  for (int i = 0; i < 3; ++i) {
    const Tensor loss = job.loss();
    CommDebugMode comm;
    loss.backward();
    calls.push_back(comm.total());
  }
  return calls;
}

}  // namespace

TEST_CASE("hooks on one rank: a hook that reads a gradient's part changes no rank's calls", "[processes]") {
  for (const Placement& layout : {Placement(Replicate()), Placement(Shard(0))}) {
    CAPTURE(to_string(layout));
    Job without(layout), with(layout);
    std::vector<Tensor> kept, parts;
    const Tensor loss = with.loss();
    if (with.is_first) {
      for (const Tensor& w : with.leaves) {
        w.register_hook([&](const Tensor& g) {
          kept.push_back(g);
          parts.push_back(DTensor(g).local(0).clone());
        });
      }
    }
    CHECK(calls_of_backwards(with) == calls_of_backwards(without));
    CHECK(parts.size() == (with.is_first ? 9 : 0));
    with.check(3);
    without.check(3);
  }
}

TEST_CASE("hooks on one rank: torch::autograd::grad gives the same layouts and calls", "[processes]") {
  Job job(Replicate());
  const Tensor loss = job.loss();
  int calls = 0;
  if (job.is_first) job.leaves[1].register_hook([&](const Tensor&) { ++calls; });
  CommDebugMode comm;
  const auto gradients = torch::autograd::grad({loss}, job.leaves);
  CHECK(comm.total() == 3);
  CHECK(calls == (job.is_first ? 1 : 0));
  const auto expected = torch::autograd::grad({job.plain_loss()}, job.plain);
  for (size_t i = 0; i < gradients.size(); ++i) {
    CHECK(DTensor(gradients[i]).placements() == Placements{Replicate()});
    CHECK(torch::allclose(full_tensor(gradients[i]), expected[i], 1e-10, 1e-12));
  }
}

TEST_CASE("hooks on one rank: a hook that keeps the gradient of a table sharded by rows", "[processes]") {
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"all"});
  const bool is_first = mesh.local_ranks().front() == 0;
  const Tensor ids0 = torch::arange(8), table0 = sines({12, 3}).requires_grad_();
  const Tensor table = distribute_tensor(table0.detach(), mesh, {Shard(0)}).requires_grad_();
  std::vector<Tensor> kept;
  if (is_first) table.register_hook([&](const Tensor& g) { kept.push_back(g); });
  const Tensor loss = torch::embedding(table, distribute_tensor(ids0, mesh, {Shard(0)})).pow(3).sum();
  CommDebugMode comm;
  loss.backward();
  CHECK(comm.total() == 1);
  if (is_first) CHECK(DTensor(table.grad()).local(0).isfinite().all().item<bool>());  // no operator has read it
  torch::embedding(table0, ids0).pow(3).sum().backward();
  CHECK(torch::allclose(full_tensor(table.grad()), table0.grad(), 1e-10, 1e-12));
  // What the hook has kept is not changed with .grad.
  const Tensor before = is_first ? DTensor(kept[0]).local(0).clone() : Tensor();
  table.grad().zero_();
  if (is_first) CHECK(torch::equal(DTensor(kept[0]).local(0), before));
  CHECK(full_tensor(table.grad()).eq(0).all().item<bool>());
}

}  // namespace dtensor
