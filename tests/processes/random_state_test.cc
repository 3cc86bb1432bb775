// Random numbers of a job: plain tensors that are drawn in each process are the same in all, as distributed ones are,
// from when the world is made, and again from share_random_state() on.
#include <torch/nn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

const torch::TensorOptions kDouble(torch::kDouble);

// How a program draws a plain tensor of [6, 3].
struct Draw {
  const char* name;
  std::function<Tensor()> draw;
};

std::vector<Draw> draws() {
  return {{"rand",
           [] {
             return torch::rand({6, 3}, kDouble);
           }},
          {"randn",
           [] {
             return torch::randn({6, 3}, kDouble);
           }},
          {"randint",
           [] {
             return torch::randint(100, {6, 3}, kDouble);
           }},
          {"randperm",
           [] {
             return torch::randperm(18, kDouble).view({6, 3});
           }},
          {"normal_",
           [] {
             return torch::empty({6, 3}, kDouble).normal_();
           }},
          {"bernoulli",
           [] {
             return torch::full({6, 3}, 0.5, kDouble).bernoulli();
           }},
          {"dropout",
           [] {
             return torch::dropout(torch::ones({6, 3}, kDouble), 0.5, true);
           }},
          {"feature_dropout",
           [] {
             return torch::feature_dropout(torch::ones({6, 3, 1}, kDouble), 0.5, true)[0];
           }},
          {"multinomial", [] {
             return torch::multinomial(torch::ones({6, 9}), 3).to(torch::kDouble);
           }}};
}

DeviceMesh job_mesh() { return DeviceMesh(job_world(), {job_world().size()}, {"dp"}); }

// Has every rank the same in this plain tensor?
bool same_everywhere(const Tensor& plain) {
  const Tensor all = full_tensor(from_local({plain.unsqueeze(0)}, job_mesh(), {Shard(0)}));
  return torch::equal(all, plain.unsqueeze(0).expand_as(all));
}

// Draws, beside what is distributed.
void check_all_draws(const DeviceMesh& mesh) {
  const ImplicitReplication all_ranks_agree;
  const Tensor values = torch::arange(18, kDouble).view({6, 3});
  for (const Draw& d : draws()) {
    INFO(d.name);
    const Tensor drawn = d.draw();
    CHECK(same_everywhere(drawn));
    if (drawn.sizes() != values.sizes()) continue;
    CHECK(torch::equal(full_tensor(distribute_tensor(values, mesh, {Shard(0)}) * drawn), values * drawn));
    const Tensor noise = rand({6, 3}, mesh, {Replicate()}, {.dtype = torch::kDouble});
    CHECK(same_everywhere(full_tensor(noise)));
  }
}

TEST_CASE("ranks seeded differently draw equal plain values in all processes of a world", "[processes][random]") {
  job_world();  // before the seeds: the making of a world shares a random state
  torch::manual_seed(100 + std::atoll(std::getenv("RANK")));
  const World world = World::from_env();
  check_all_draws(DeviceMesh(world, {world.size()}, {"dp"}));
}

TEST_CASE("share_random_state makes draws equal again, plain and distributed ones", "[processes][random]") {
  const DeviceMesh mesh = job_mesh();
  const int64_t rank = mesh.local_ranks().front();
  torch::manual_seed(rank);
  CHECK_FALSE(same_everywhere(torch::rand({4})));
  torch::rand({rank});
  {
    const CommDebugMode comm;
    share_random_state(mesh);
    CHECK(comm.total() == 1);
  }
  check_all_draws(mesh);
  torch::manual_seed(7);
  const Tensor expected = torch::rand({4});
  torch::manual_seed(rank == 0 ? 7 : 8);
  share_random_state(mesh);
  CHECK(torch::equal(torch::rand({4}), expected));
}

TEST_CASE("share_random_state on a mesh of some ranks does not affect the others", "[processes][random]") {
  const int64_t size = job_world().size(), own = own_rank();
  if (size < 4) return;
  torch::manual_seed(own);
  share_random_state(DeviceMesh(job_world(), {2}, {"pair"}, {1, 3}));
  const Tensor drawn = torch::rand({4});
  torch::manual_seed(own == 3 ? 1 : own);
  CHECK(torch::equal(drawn, torch::rand({4})));
}

}  // namespace
}  // namespace dtensor
