// Layer, RMS and group norm of split rows: the elements do not move.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <tuple>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/cost_by_bytes.h"
#include "tests/testing/differential.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors tensors(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
}

// Priced so that elements stay if that is fewer bytes.
void check_both(OpCase c, int max_2d) {
  check_op(c, max_2d);
  std::vector<std::unique_ptr<CostByBytes>> by_bytes;
  for (const DeviceMesh& mesh : test_meshes()) by_bytes.push_back(std::make_unique<CostByBytes>(mesh.world()));
  c.name += ", by bytes";
  check_op(c, max_2d);
}

const Placements& placements_of(const at::Tensor& t) { return DTensor(t).placements(); }

TEST_CASE("layer norm of split rows matches ATen", "[ops][normalization]") {
  const auto check = [](const char* name, std::vector<std::vector<int64_t>> shapes, auto fn,
                        std::vector<bool> grad = {}) {
    OpCase c{name, fn, std::move(shapes)};
    c.grad = std::move(grad);
    c.strided_inputs = true;
    c.tolerance = 1e-11;
    check_both(c, /*max_2d=*/40);
  };
  check("layer_norm", {{5, 3, 43}, {43}, {43}},
        [](auto& t) { return Tensors{at::layer_norm(t[0], {43}, t[1], t[2])}; });
  check("over two dims, some ranks with nothing", {{5, 2, 26}, {2, 26}, {2, 26}}, [](auto& t) {
    return Tensors{at::layer_norm(t[0], {2, 26}, t[1], t[2])};
  });
  check("one row", {{61}, {61}}, [](auto& t) { return Tensors{at::layer_norm(t[0], {61}, t[1])}; });
  check("no rows", {{0, 26}, {26}}, [](auto& t) { return Tensors{at::layer_norm(t[0], {26}, t[1])}; });
  check("without weights", {{2, 41}}, [](auto& t) { return Tensors{at::layer_norm(t[0], {41})}; });
  check("frozen", {{3, 41}, {41}, {41}}, [](auto& t) { return Tensors{at::layer_norm(t[0], {41}, t[1], t[2])}; },
        {true, false, true});
  check("weights alone", {{3, 41}, {41}, {41}}, [](auto& t) { return Tensors{at::layer_norm(t[0], {41}, t[1], t[2])}; },
        {false, true, true});
  check("transposed", {{41, 3}, {41}}, [](auto& t) { return Tensors{at::layer_norm(t[0].t(), {41}, t[1])}; });
  check("with statistics", {{3, 41}, {41}},
        [](auto& t) { return tensors(at::native_layer_norm(t[0], {41}, t[1], {}, 1e-5)); }, {false, false});
  check("rms_norm", {{5, 43}, {43}}, [](auto& t) { return Tensors{at::rms_norm(t[0], {43}, t[1], 1e-5)}; });
}

TEST_CASE("layer norm of split rows of half types adds up in float", "[ops][normalization]") {
  OpCase c{"bfloat16",
           [](auto& t) { return tensors(at::native_layer_norm(t[0], {67}, t[1], t[2], 1e-5)); },
           {{5, 67}, {67}, {67}}};
  c.make = [](size_t, const auto& shape) { return at::rand(shape).to(at::kBFloat16); };
  c.tolerance = 0.04;
  c.grad = {false, false, false};
  c.partial_inputs = false;
  check_both(c, 20);
  c.name = "bfloat16 with float weights";
  c.make = [](size_t i, const auto& shape) { return at::rand(shape).to(i == 0 ? at::kBFloat16 : at::kFloat); };
  check_both(c, 20);
}

TEST_CASE("layer norm of split rows exchanges two numbers per row in forward and in backward", "[ops][normalization]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor x = lay_out(at::randn({64, 1000}, at::kFloat), mesh, {Shard(1)}).requires_grad_();
  const at::Tensor w = distribute_tensor(at::rand({1000}), mesh, {Replicate()}).requires_grad_();
  const at::Tensor sharded = distribute_tensor(at::rand({1000}), mesh, {Shard(0)}).requires_grad_();
  at::Tensor y;
  CHECK(traffic([&] { y = at::layer_norm(x, {1000}, w, sharded); }) == Traffic{1, 3 * 64 * 2 * 4});
  CHECK(placements_of(y) == Placements{Shard(1)});
  const at::Tensor grad = lay_out(at::randn({64, 1000}, at::kFloat), mesh, {Shard(1)});
  const auto back = [&](const std::vector<c10::IValue>& args) {
    return call_op("aten::native_layer_norm_backward", args);
  };
  const auto [out, mean, rstd] = at::native_layer_norm(x.detach(), {1000}, w.detach(), sharded.detach(), 1e-5);
  CHECK(placements_of(mean) == Placements{Replicate()});
  Tensors grads;
  const std::vector<c10::IValue> args = {grad,       x.detach(),       std::vector<int64_t>{1000},         mean, rstd,
                                         w.detach(), sharded.detach(), c10::List<bool>({true, true, true})};
  // An all-reduce of two numbers per row.
  CHECK(traffic([&] { grads = back(args); }) == Traffic{1, 2 * 64 * 2 * 4 * 3 / 4});
  CHECK(placements_of(grads[0]) == Placements{Shard(1)});
  CHECK(placements_of(grads[1]) == Placements{Shard(0)});
  CHECK(placements_of(grads[2]) == Placements{Shard(0)});

  // Rows split over another mesh dim: gradients of the weights are Partial there, as with the rule.
  const DeviceMesh square(World::local(4), {2, 2}, {"dp", "tp"});
  const auto on_square = [&](std::vector<int64_t> sizes, const Placements& p) {
    return lay_out(at::randn(sizes, at::kFloat), square, p);
  };
  const at::Tensor rows = on_square({64, 1000}, {Shard(0), Shard(1)}),
                   weight = on_square({1000}, {Replicate(), Shard(0)});
  const auto stats = at::native_layer_norm(rows, {1000}, weight, {}, 1e-5);
  CHECK(placements_of(std::get<1>(stats)) == Placements{Shard(0), Replicate()});
  grads = back({on_square({64, 1000}, {Shard(0), Shard(1)}), rows, std::vector<int64_t>{1000}, std::get<1>(stats),
                std::get<2>(stats), weight, c10::IValue(), c10::List<bool>({true, true, false})});
  CHECK(placements_of(grads.at(1)) == Placements{Partial(), Shard(0)});
  CHECK_FALSE(grads.at(2).defined());
}

TEST_CASE("layer norm moves the rows if that is cheaper", "[ops][normalization]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor x = lay_out(at::randn({6, 5}, at::kFloat), mesh, {Shard(1)});  // 2, 2, 1, 0: fewer than two each
  CHECK(traffic([&] { at::layer_norm(x, {5}); }).bytes <= 6 * 5 * 4);
}

TEST_CASE("layer norm of split rows stays within a memory limit", "[ops][normalization]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor plain = at::randn({64, 100}, at::kFloat), x = lay_out(plain, mesh, {Shard(1)});
  const auto norm = [](const at::Tensor& t) { return at::layer_norm(t, {100}); };
  const Traffic usual = traffic([&] { norm(x); });
  CHECK(usual.calls == 1);
  // All means on each rank and its own exceed it: each rank gets those of some rows, then the results.
  at::Tensor y, var;
  {
    const RedistributeMemoryLimit limit(4 * 64 * 4);
    CHECK(traffic([&] { y = norm(x); }).calls > 1);
    var = x.var(1);
  }
  CHECK(at::allclose(full_tensor(y), norm(plain), 1e-4, 1e-5));
  CHECK(at::allclose(full_tensor(var), plain.var(1)));
  // Neither way does.
  const RedistributeMemoryLimit none(64);
  CHECK_THROWS_WITH(norm(x), Catch::Contains("max_bytes is 64, but every route needs at least"));
}

TEST_CASE("layer norm of split rows: constant rows become zeros, and errors", "[ops][normalization]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const at::Tensor x = lay_out(at::randn({64, 1}, at::kFloat).expand({64, 101}), mesh, {Shard(1)});
  CHECK(full_tensor(at::layer_norm(x, {101})).eq(0).all().item<bool>());
  const at::Tensor wrong = distribute_tensor(at::rand({100}), mesh, {Shard(0)});
  CHECK_THROWS_WITH(at::layer_norm(x, {101}, wrong), Catch::Contains("[101]"));
  CHECK_THROWS_WITH(at::layer_norm(x, {101}, at::rand({101})), Catch::Contains("plain tensor"));
}

// The kernels exist on CUDA only; their results should equal those of the composite's autograd.
TEST_CASE("fused RMS norm of split rows", "[ops][normalization]") {
  const at::Tensor x = at::randn({5, 67}, at::kDouble).requires_grad_(),
                   w = at::rand({67}, at::kDouble).requires_grad_();
  const at::Tensor grad = at::randn({5, 67}, at::kDouble), y = at::rms_norm(x, {67}, w, 1e-5);
  y.backward(grad);
  const std::vector<int64_t> shape = {67};
  for (const DeviceMesh& mesh : test_meshes()) {
    Placements placements(static_cast<size_t>(mesh.ndim()), Shard(0)), whole(placements.size(), Replicate());
    placements.back() = Shard(1);
    const auto dx = distribute_tensor(x.detach(), mesh, placements), dw = distribute_tensor(w.detach(), mesh, whole),
               dg = distribute_tensor(grad, mesh, placements);
    const CostByBytes by_bytes(mesh.world());
    const at::AutoDispatchBelowADInplaceOrView below;  // on CPU autograd has no such kernel to call
    Tensors out, back;
    CHECK(traffic([&] { out = call_op("aten::_fused_rms_norm", {dx, shape, dw, 1e-5}); }).calls == 1);
    CHECK(placements_of(out[0]) == placements);
    CHECK_FALSE(difference(out[0], y.detach(), 1e-12));
    const std::vector<c10::IValue> args = {dg, dx, shape, out[1], dw, c10::List<bool>({true, true})};
    CHECK(traffic([&] { back = call_op("aten::_fused_rms_norm_backward", args); }).calls == 1);
    CHECK(placements_of(back[0]) == placements);
    CHECK_FALSE(difference(back[0], x.grad(), 1e-12));
    CHECK_FALSE(difference(back[1], w.grad(), 1e-12));
  }
}

TEST_CASE("group norm of split groups matches ATen", "[ops][normalization]") {
  const auto check = [](const char* name, std::vector<std::vector<int64_t>> shapes, auto fn,
                        std::vector<bool> grad = {}) {
    OpCase c{name, fn, std::move(shapes)};
    c.grad = std::move(grad);
    c.strided_inputs = true;
    c.tolerance = 1e-11;
    check_both(c, /*max_2d=*/30);
  };
  check("group_norm", {{3, 10, 13}, {10}, {10}}, [](auto& t) { return Tensors{at::group_norm(t[0], 2, t[1], t[2])}; });
  check("images", {{2, 14, 7, 5}, {14}}, [](auto& t) { return Tensors{at::group_norm(t[0], 7, t[1])}; });
  check("one group", {{2, 6, 13}, {6}}, [](auto& t) { return Tensors{at::group_norm(t[0], 1, t[1])}; });
  check("no images", {{3, 58}}, [](auto& t) { return Tensors{at::group_norm(t[0], 2)}; });
  check("a channel a group", {{2, 6, 29}, {6}}, [](auto& t) { return Tensors{at::group_norm(t[0], 6, t[1])}; });
  check("frozen", {{2, 6, 29}, {6}, {6}}, [](auto& t) { return Tensors{at::group_norm(t[0], 2, t[1], t[2])}; },
        {true, false, true});
  check("with statistics", {{2, 6, 29}},
        [](auto& t) { return tensors(at::native_group_norm(t[0], {}, {}, 2, 6, 29, 3, 1e-5)); }, {false});
}

TEST_CASE("group norm of split groups exchanges two numbers per group and sample", "[ops][normalization]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  for (const int64_t dim : {1, 2}) {
    const at::Tensor x = lay_out(at::randn({16, 12, 4000}, at::kFloat), mesh, {Shard(dim)}).requires_grad_();
    at::Tensor y;
    CHECK(traffic([&] { y = at::group_norm(x, 3); }) == Traffic{1, 3 * 16 * 3 * 2 * 4});
    CHECK(placements_of(y) == Placements{Shard(dim)});
    const at::Tensor grad = lay_out(at::randn({16, 12, 4000}, at::kFloat), mesh, {Shard(dim)});
    CHECK(traffic([&] { y.backward(grad); }) == Traffic{1, 2 * 16 * 3 * 2 * 4 * 3 / 4});
    CHECK(placements_of(x.grad()) == Placements{Shard(dim)});
  }
  const at::Tensor constant = lay_out(at::full({16, 12, 4000}, 0.1, at::kFloat), mesh, {Shard(1)});
  CHECK(full_tensor(at::group_norm(constant, 3)).eq(0).all().item<bool>());
}

}  // namespace
}  // namespace dtensor::testing
