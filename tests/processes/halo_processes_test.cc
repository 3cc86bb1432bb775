// Halos between processes: the values of one device, forward and backward.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/reflection_pad2d.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/ghost_width.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

at::Tensor numbers(std::vector<int64_t> sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

TEST_CASE("halos between processes equal those on one device", "[processes][halo]") {
  const DeviceMesh mesh(job_world(), {2, job_world().size() / 2}, {"y", "x"});
  const at::Tensor weight = numbers({3, 3, 3, 3}, 1), split_weight = lay_out(weight, mesh, {Replicate(), Replicate()});
  using Op = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<const char*, Op>> ops = {
      {"roll",
       [](const at::Tensor& t) {
         return t.roll({3, -2}, {1, 2});
       }},
      {"flip",
       [](const at::Tensor& t) {
         return t.flip({1, 2});
       }},
      {"pad",
       [](const at::Tensor& t) {
         return at::constant_pad_nd(t, {1, 2, 3, -1}, 0.5);
       }},
      {"windows of what is padded",
       [](const at::Tensor& t) {
         const at::Tensor p = at::constant_pad_nd(t, {1, 1, 1, 1});
         return p.slice(1, 0, 11).slice(2, 1, 14) * p.slice(2, 2, 15).slice(1, 2, 13) + t;
       }},
      {"what is padded, and windows of it",
       [](const at::Tensor& t) {
         const at::Tensor p = at::constant_pad_nd(t, {0, 0, 2, 1});
         return p.slice(1, 1, 12) * p.select(1, 4).unsqueeze(1) + (p * 2).slice(1, 0, 11);
       }},
      {"reflection",
       [](const at::Tensor& t) {
         return at::reflection_pad2d(t, {4, 1, 2, 5});
       }},
      {"slice", [](const at::Tensor& t) { return t.slice(1, 1, 10).slice(2, 0, 13, 2) * 2; }},
      {"select", [](const at::Tensor& t) { return t.select(1, 4) * 2; }},
      {"unfold", [](const at::Tensor& t) { return t.unfold(1, 4, 2) * 2; }},
      {"convolution",
       [&](const at::Tensor& t) {
         return at::conv2d(t.unsqueeze(0), is_dtensor(t) ? split_weight : weight, {}, 1, 2);
       }},
  };
  for (const Placements& placements :
       {Placements{Shard(1), Shard(2)}, Placements{Shard(2), Shard(2)}, Placements{Replicate(), Shard(1)}}) {
    for (const auto& [name, op] : ops) {
      CAPTURE(name, to_string(placements));
      const at::Tensor plain = numbers({3, 11, 13}, 2).requires_grad_();
      const at::Tensor split = lay_out(plain, mesh, placements).requires_grad_();
      const at::Tensor expected = op(plain), actual = op(split);
      CHECK(difference(actual.detach(), expected.detach()).value_or("") == "");
      const at::Tensor seed = numbers(expected.sizes().vec(), 3);
      expected.backward(seed);
      actual.backward(lay_out(seed, mesh, without_partials(DTensor(actual).placements())));
      CHECK(difference(split.grad(), plain.grad()).value_or("") == "");
    }
  }
}

TEST_CASE("writes to windows of a tensor reach the ranks that hold it", "[processes][halo]") {
  const DeviceMesh mesh(job_world(), {2, job_world().size() / 2}, {"y", "x"});
  using Write = std::function<void(const at::Tensor&)>;
  const std::vector<std::pair<const char*, Write>> writes = {
      {"inside", [](const at::Tensor& t) { t.narrow(1, 1, 22).narrow(2, 1, 14).mul_(2); }},
      {"of another window", [](const at::Tensor& t) { t.slice(1, 2).copy_(t.slice(1, 0, -2) + 1); }},
      {"steps", [](const at::Tensor& t) { t.slice(1, 1, 24, 2).slice(2, 3).mul_(2); }},
      {"of a selection", [](const at::Tensor& t) { t.select(0, 1).slice(0, 3).slice(1, 0, 15).mul_(2); }},
  };
  for (const Placements& placements :
       {Placements{Shard(1), Shard(2)}, Placements{Shard(2), Shard(2)}, Placements{Replicate(), Shard(1)}}) {
    for (const auto& [name, write] : writes) {
      CAPTURE(name, to_string(placements));
      const at::Tensor plain = numbers({3, 24, 16}, 5), split = lay_out(plain.clone(), mesh, placements);
      write(plain);
      CommDebugMode comm;
      write(split);
      for (const CommEvent& e : comm.events()) CHECK(e.received_bytes <= e.bytes);
      CHECK(comm.count(Collective::kAllGather) == 0);
      CHECK(difference(split, plain).value_or("") == "");
    }
  }
}

TEST_CASE("processes exchange the borders of an in-place stencil once per round", "[processes][halo]") {
  const DeviceMesh mesh(job_world(), {2, job_world().size() / 2}, {"y", "x"});
  const at::Tensor plain = numbers({26, 23}, 6);
  const at::Tensor split = lay_out(plain, mesh, {Shard(0), Shard(1)}) * 1;  // its parts were never exposed
  set_ghost_width(split, {1, 1});
  for (int round = 0; round < 5; ++round) {
    CommDebugMode comm;
    for (const at::Tensor& t : {plain, split}) {
      const auto inside = [&](int64_t y, int64_t x) { return t.narrow(0, y, 24).narrow(1, x, 21); };
      inside(1, 1).copy_((inside(0, 1) + inside(2, 1) + inside(1, 0) + inside(1, 2)) / 4);
    }
    CHECK(comm.total() <= (round == 0 ? 2 : 1));
    for (const CommEvent& e : comm.events()) CHECK(e.received_bytes <= e.bytes);
  }
  CHECK(difference(split, plain).value_or("") == "");
}

TEST_CASE("processes receive the planned halo bytes", "[processes][halo]") {
  const DeviceMesh mesh(job_world(), {2, job_world().size() / 2}, {"y", "x"});
  const at::Tensor split =
      lay_out(numbers({24, 16}, 4), mesh, {Shard(0), Shard(1)}) * 1;  // its parts were never exposed
  CommDebugMode comm;
  split.roll({1}, {0});
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 2 * 16 / mesh.size(1) * 8);  // for the other way, too
  comm.reset();
  CHECK(difference(split.roll({-1}, {0}), numbers({24, 16}, 4).roll({-1}, {0})).value_or("") == "");
  CHECK(comm.total() == 0);
  comm.reset();
  split.roll({2, 1}, {0, 1});  // a tile is 12 rows high: two rows, one column, less the corner that is in both
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == (2 * 16 / mesh.size(1) + 12 - 2) * 8);
}

}  // namespace
}  // namespace dtensor::testing
