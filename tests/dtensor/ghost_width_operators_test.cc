// Operators that compute with a halo, on tensors with a declared ghost width: one exchange serves all of them.
#include <torch/nn/functional/padding.h>
#include <torch/types.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/ghost_width.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

// Operators that compute with a halo of at most {1, 2} rows and columns of images of [2, 4, 12, 16].
struct HaloOperator {
  std::string name;
  std::function<Tensor(const Tensor&)> compute;
};
std::vector<HaloOperator> halo_operators() {
  namespace F = torch::nn::functional;
  const auto padded = [](std::vector<int64_t> pad, F::PadFuncOptions::mode_t mode) {
    return [pad = std::move(pad), mode](const Tensor& t) { return F::pad(t, F::PadFuncOptions(pad).mode(mode)); };
  };
  const auto stencil = [](const Tensor& wide) {
    const auto beside = [&](int64_t row, int64_t column) { return wide.narrow(2, row, 12).narrow(3, column, 16); };
    return beside(0, 1) + 2 * beside(2, 3) - beside(1, 0) * beside(1, 2);
  };
  const auto weight = [](std::vector<int64_t> shape) { return numbers(shape) / 100; };
  return {
      {"roll",
       [](const Tensor& t) {
         return t.roll({1, -2}, {2, 3});
       }},
      {"roll of all dims",
       [](const Tensor& t) {
         return t.roll({1, 3, -1, 2}, {0, 1, 2, 3});
       }},
      {"constant padding", padded({2, 1, 1, 1}, torch::kConstant)},
      {"cropping", padded({-1, 1}, torch::kConstant)},
      {"reflection padding", padded({1, 2, 1, 0}, torch::kReflect)},
      {"replication padding", padded({2, 2, 1, 1}, torch::kReplicate)},
      {"circular padding", padded({2, 1, 1, 1}, torch::kCircular)},
      {"stencil over padding",
       [=](const Tensor& t) {
         return stencil(torch::constant_pad_nd(t, {2, 2, 1, 1}, 7));
       }},
      {"convolution",
       [=](const Tensor& t) {
         return torch::conv2d(t, weight({3, 4, 3, 5}), {}, 1, {1, 2});
       }},
      {"convolution of rows",
       [=](const Tensor& t) {
         return torch::conv2d(t, weight({3, 4, 3, 1}), {}, 1, {1, 0});
       }},
      {"strided convolution",
       [=](const Tensor& t) {
         return torch::conv2d(t, weight({3, 4, 3, 3}), {}, 2, 1);
       }},
      {"grouped convolution",
       [=](const Tensor& t) {
         return torch::conv2d(t, weight({4, 1, 3, 3}), {}, 1, 1, 1, 4);
       }},
      {"transposed convolution",
       [=](const Tensor& t) {
         return torch::conv_transpose2d(t, weight({4, 2, 3, 3}));
       }},
      {"max pooling", [](const Tensor& t) { return torch::max_pool2d(t, 3, 1, 1); }},
      {"average pooling", [](const Tensor& t) { return torch::avg_pool2d(t, 3, 1, 1); }},
      {"unfold", [](const Tensor& t) { return t.unfold(2, 2, 1) * 1; }},
      {"bilinear upsampling",
       [](const Tensor& t) {
         return torch::upsample_bilinear2d(t, {24, 32}, false);
       }},
  };
}

const HaloOperator& halo_operator(const std::string& name) {
  static const std::vector<HaloOperator> all = halo_operators();
  for (const HaloOperator& op : all) {
    if (op.name == name) return op;
  }
  throw std::out_of_range(name);
}

TEST_CASE("ghost width: one exchange serves rolls, padding, convolution, pooling and upsampling within the width") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  Pair u = make({2, 4, 12, 16}, mesh, {Shard(2), Shard(3)});
  set_ghost_width(u.distributed, {0, 0, 1, 2});
  const ImplicitReplication weights;
  for (int round = 0; round < 2; ++round) {
    int64_t calls = 0;
    for (const char* name : {"roll", "stencil over padding", "circular padding", "convolution", "convolution of rows",
                             "max pooling", "average pooling", "bilinear upsampling"}) {
      CAPTURE(name);
      const HaloOperator& op = halo_operator(name);
      Tensor result;
      calls += traffic([&] { result = op.compute(u.distributed); }).calls;
      CHECK(calls == 1);
      CHECK(same(result, op.compute(u.plain)));
    }
    for (const Tensor& t : {u.plain, u.distributed}) t.add_(1);
  }
}

TEST_CASE("ghost width: halo operators of all layouts equal those of one device, forward and backward") {
  struct Case {
    std::vector<int64_t> mesh;
    Placements placements;
    bool channels_last = false;
  };
  for (const Case& c : std::vector<Case>{{{2, 2}, {Shard(2), Shard(3)}},
                                         {{2, 2}, {Shard(2), Shard(3)}, true},
                                         {{2, 3}, {Shard(2), Shard(3)}},  // parts of 6, 6 and 4 columns
                                         {{2, 2}, {Shard(3), Shard(3)}},
                                         {{2, 2}, {Shard(0), Shard(2)}},
                                         {{2, 2}, {Shard(1), Shard(3)}},
                                         {{2, 2}, {Replicate(), Shard(2)}},
                                         {{5}, {Shard(2)}}}) {  // a rank has no rows: no region
    const auto ranks = static_cast<int64_t>(c.mesh.size() == 1 ? c.mesh[0] : c.mesh[0] * c.mesh[1]);
    const DeviceMesh mesh(World::local(ranks), c.mesh);
    for (const HaloOperator& op : halo_operators()) {
      for (const bool is_declared : {false, true}) {
        CAPTURE(op.name, to_string(c.placements), c.channels_last, is_declared);
        Tensor plain = numbers({2, 4, 12, 16}) / 1000;
        if (c.channels_last) plain = plain.contiguous(torch::MemoryFormat::ChannelsLast);
        Tensor u = distribute_tensor(plain, mesh, c.placements).clone();
        plain.requires_grad_();
        u.requires_grad_();
        if (is_declared) set_ghost_width(u, {0, 0, 1, 2});
        const ImplicitReplication weights;
        const Tensor expected = op.compute(plain);
        for (int times = 0; times < 2; ++times) {
          const Tensor result = op.compute(u);
          CHECK(same(result, expected));
          CHECK(result.strides() == expected.strides());
          if (times == 1) (result * result).sum().backward();
        }
        (expected * expected).sum().backward();
        CHECK(torch::allclose(full_tensor(u.grad()), plain.grad()));
      }
    }
  }
}

TEST_CASE("ghost width: padding, convolution and pooling beyond the width are exchanges of their own") {
  const Pair u = make({2, 4, 12, 16}, mesh_of(4), {Shard(2)});
  set_ghost_width(u.distributed, {0, 0, 1, 0});
  const auto check = [&u = u](const std::function<Tensor(const Tensor&)>& compute, int64_t calls) {
    Tensor result;
    CHECK(traffic([&] { result = compute(u.distributed); }).calls == calls);
    CHECK(same(result, compute(u.plain)));
  };
  const auto pool = [](int64_t size) {
    return [=](const Tensor& t) { return torch::max_pool2d(t, size, 1, size / 2); };
  };
  check(pool(3), 1);
  check(pool(5), 1);
  check(pool(5), 1);
  check(pool(3), 0);
  const auto pad = [](int64_t rows) {
    return [=](const Tensor& t) { return torch::constant_pad_nd(t, {0, 0, rows, rows}).narrow(2, 0, 12) * 1; };
  };
  check(pad(1), 0);
  check(pad(2), 1);
  for (const Tensor& t : {u.plain, u.distributed}) t.mul_(2);
  check(pad(1), 1);
  check(pool(3), 0);
}

TEST_CASE("ghost width: a call beyond the width needs the same entry of a frozen strategy cache as without one") {
  const DeviceMesh mesh = mesh_of(4);
  const Tensor u = zeros({1, 1, 16, 8}, mesh, {Shard(2)});
  const auto pool = [&](int64_t size) { return traffic([&] { torch::max_pool2d(u, size, 1, size / 2); }).calls; };
  CHECK(pool(5) == 1);
  strategy_cache(mesh.world()).freeze();
  set_ghost_width(u, {0, 0, 1, 0});
  CHECK(pool(5) == 1);
  CHECK(pool(3) == 1);  // within the width: needs no entry
  CHECK(pool(3) == 0);
}

TEST_CASE("ghost width: padding whose windows go beyond the region is lazy, as without a width") {
  const Pair u = make({12, 8}, mesh_of(2), {Shard(0)});
  set_ghost_width(u.distributed, {1, 0});
  const auto pad = [](const Tensor& t) { return torch::constant_pad_nd(t, {0, 0, 3, 0}); };
  Tensor wide;
  CHECK(traffic([&] { wide = pad(u.distributed); }).calls == 0);
  CHECK(traffic([&] { wide.narrow(0, 0, 12) * 1; }).calls == 1);
  CHECK(same(wide * 1, pad(u.plain)));
}

TEST_CASE("ghost width: pooling uses no region that exceeds a memory limit beside its boxes") {
  const Tensor u = zeros({1, 1, 16, 8}, mesh_of(4), {Shard(2)});
  set_ghost_width(u, {0, 0, 3, 0});
  const auto calls = [&](int64_t max_bytes) {
    const RedistributeMemoryLimit limit(max_bytes);
    return traffic([&] { torch::max_pool2d(u, 7, 1, 3); }).calls;
  };
  const int64_t needed = (4 + 10 + 10) * 8 * 4;  // the part, its region, and its box
  for (int times = 0; times < 2; ++times) CHECK(calls(needed - 1) == 1);
  CHECK(calls(needed) == 1);
  CHECK(calls(needed) == 0);
}

TEST_CASE("ghost width: a region that reaches around all of a dim has each element where it belongs") {
  for (const int64_t ranks : {2, 3}) {
    const Pair u = make({5, 4}, mesh_of(ranks), {Shard(0)});
    set_ghost_width(u.distributed, {2, 0});
    for (int64_t shift = -2; shift <= 2; ++shift) {
      CHECK(same(u.distributed.roll(shift, 0), u.plain.roll(shift, 0)));
      const auto pad = [&](const Tensor& t) { return torch::replication_pad1d(t.t(), {2, std::abs(shift)}).t(); };
      CHECK(same(pad(u.distributed) * 1, pad(u.plain)));
    }
  }
}

TEST_CASE("ghost width: a padded tensor keeps the values from before a write to its input") {
  const Pair u = make({12, 16}, mesh_of(4), {Shard(0)});
  set_ghost_width(u.distributed, {1, 0});
  const auto pad = [](const Tensor& t) { return torch::constant_pad_nd(t, {0, 0, 1, 1}); };
  const Tensor before = pad(u.plain), windows = pad(u.distributed), whole = pad(u.distributed);
  for (const Tensor& t : {u.plain, u.distributed}) t.narrow(0, 1, 10).mul_(3);
  for (int64_t row = 0; row <= 2; ++row) CHECK(same(windows.narrow(0, row, 12) * 1, before.narrow(0, row, 12) * 1));
  CHECK(same(whole * 1, before));
  CHECK(same(pad(u.distributed) * 1, pad(u.plain)));
}

TEST_CASE("ghost width: second derivatives of circular padding are those of one device") {
  const auto second = [](const Tensor& t) {
    namespace F = torch::nn::functional;
    const Tensor wide = F::pad(t, F::PadFuncOptions({1, 1, 1, 1}).mode(torch::kCircular));
    const Tensor first = torch::autograd::grad({(wide * wide * wide).sum()}, {t}, {}, true, true)[0];
    return torch::autograd::grad({(first * first).sum()}, {t})[0];
  };
  const Tensor plain = numbers({1, 1, 12, 16}).requires_grad_();
  Tensor u = distribute_tensor(plain.detach(), mesh_of(4), {Shard(2)}).clone().requires_grad_();
  set_ghost_width(u, {0, 0, 1, 1});
  CHECK(torch::allclose(full_tensor(second(u)), second(plain)));
}

}  // namespace
}  // namespace dtensor::testing
