// Slicing, splitting and joining at the borders of blocks: no communication, and the values of plain ATen.
#include <torch/autograd.h>
#include <torch/nn.h>

#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

Placements layout(const Tensor& t) { return spec_of(t)->placements(); }

bool same(const Tensor& t, const Tensor& plain) { return torch::equal(is_dtensor(t) ? full_tensor(t) : t, plain); }

Tensor numbers(torch::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).view(sizes);
}

TEST_CASE("blocks: a fused projection is split and joined without communication", "[ops][blocks]") {
  for (const int64_t ranks : {2, 3, 4}) {
    for (const int64_t block : {12, 7, 2}) {  // even; uneven; fewer than ranks
      CAPTURE(ranks, block);
      const DeviceMesh mesh(World::local(ranks), {ranks}, {"tp"});
      const Tensor plain = numbers({2, 3 * block, 5});
      const Tensor fused = distribute_tensor(plain, mesh, {StridedShard(1, 3)});
      CommDebugMode comm;
      const auto parts = fused.chunk(3, 1), expected = plain.chunk(3, 1);
      for (size_t i = 0; i < 3; ++i) CHECK(layout(parts[i]) == Placements{Shard(1)});
      const auto uneven = fused.split_with_sizes({2 * block, block}, 1);
      CHECK(layout(uneven[0]) == Placements{StridedShard(1, 2)});
      CHECK(layout(uneven[1]) == Placements{Shard(1)});
      const auto rest = fused.slice(1, -2 * block);
      CHECK(layout(rest) == Placements{StridedShard(1, 2)});
      const auto joined = torch::cat({parts[2], uneven[0], fused}, 1);
      CHECK(layout(joined) == Placements{StridedShard(1, 6)});
      CHECK(comm.total() == 0);
      for (size_t i = 0; i < 3; ++i) CHECK(same(parts[i], expected[i]));
      CHECK(same(uneven[0], plain.slice(1, 0, 2 * block)));
      CHECK(same(rest, plain.slice(1, block)));
      CHECK(same(joined, torch::cat({expected[2], plain.slice(1, 0, 2 * block), plain}, 1)));
    }
  }
}

TEST_CASE("blocks: gradients return to their blocks", "[ops][blocks]") {
  for (const int64_t ranks : {2, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks}, {"tp"});
    Tensor plain = numbers({3 * 5, 2}).requires_grad_();
    Tensor fused = distribute_tensor(plain.detach(), mesh, {StridedShard(0, 3)}).requires_grad_();
    const auto loss = [](const Tensor& t) {
      const auto parts = t.chunk(3);
      return (parts[0] * parts[1] + parts[2].square() + t.slice(0, 5, 15).slice(0, 5, 10)).sum() +
             torch::cat({parts[1], parts[0]}).pow(3).sum();
    };
    loss(plain).backward();
    const Tensor value = loss(fused);
    CommDebugMode comm;
    value.backward();
    CHECK(comm.total() == 0);
    CHECK(layout(fused.grad()) == Placements{StridedShard(0, 3)});
    CHECK(same(fused.grad(), plain.grad()));
  }
}

TEST_CASE("blocks: views at block borders share memory", "[ops][blocks]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  Tensor plain = numbers({12});
  Tensor fused = distribute_tensor(plain, mesh, {StridedShard(0, 3)});
  CommDebugMode comm;
  fused.slice(0, 4, 8).mul_(-1);
  fused.chunk(3)[2].zero_();
  plain.slice(0, 4, 8).mul_(-1);
  plain.chunk(3)[2].zero_();
  CHECK(comm.total() == 0);
  CHECK(same(fused, plain));
}

TEST_CASE("blocks: values are right off the borders, and if two mesh dims cut a dim", "[ops][blocks]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const Tensor plain = numbers({24, 3});
  for (const Placements& p : {Placements{Shard(0), StridedShard(0, 3)},
                              {StridedShard(0, 2), StridedShard(0, 2)},
                              {Replicate(), StridedShard(0, 3)},
                              {Shard(1), StridedShard(0, 3)},
                              {Partial(), StridedShard(0, 3)},
                              {Shard(0), Shard(0)}}) {
    CAPTURE(to_string(p));
    const Tensor t = distribute_tensor(plain, mesh, p);
    CHECK(same(t.slice(0, 3, 17), plain.slice(0, 3, 17)));
    CHECK(same(t.slice(0, 8, 16), plain.slice(0, 8, 16)));
    CHECK(same(t.slice(0, 0, 24, 2), plain.slice(0, 0, 24, 2)));
    CHECK(same(t.slice(0, 16, 40), plain.slice(0, 16, 40)));
    for (const int64_t size : {8, 16, 5}) {
      const auto parts = t.split(size), expected = plain.split(size);
      REQUIRE(parts.size() == expected.size());
      for (size_t i = 0; i < parts.size(); ++i) CHECK(same(parts[i], expected[i]));
    }
    CHECK(same(torch::cat({t, t.slice(0, 0, 8)}), torch::cat({plain, plain.slice(0, 0, 8)})));
  }
}

TEST_CASE("blocks: self-attention by heads communicates once in forward", "[ops][blocks]") {
  const auto world = GENERATE(true, false) ? World::local(4) : World::abstract(4);
  const DeviceMesh mesh(world, {4}, {"tp"});
  torch::manual_seed(1);
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(32, 8));
  attention->to(torch::kDouble);
  const Tensor x = torch::rand({5, 2, 32}, torch::kDouble);
  const Tensor expected = std::get<0>(attention->forward(x, x, x, {}, /*need_weights=*/false));
  distribute_module(*attention, mesh, [](const std::string& path, torch::nn::Module& module, const DeviceMesh& on) {
    if (!path.empty()) return;
    for (const char* fused : {"in_proj_weight", "in_proj_bias"})
      shard_parameter(module, fused, on, {StridedShard(0, 3)});
    shard_parameter(module, "out_proj.weight", on, {Shard(1)});
  });
  const Tensor spread = distribute_tensor(x, mesh);
  CommDebugMode comm;
  const MeshScope scope(mesh);
  const Tensor y = std::get<0>(attention->forward(spread, spread, spread, {}, /*need_weights=*/false));
  const Tensor reduced = y.exp();  // reads it
  CAPTURE(comm.to_string());
  CHECK(comm.total() == 1);
  CHECK(comm.work_share() == Approx(1));
  if (world.has_data()) CHECK(torch::allclose(full_tensor(reduced), expected.exp(), 1e-10, 1e-12));
}

}  // namespace
}  // namespace dtensor
