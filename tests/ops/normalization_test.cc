#include <ATen/TensorOperators.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rms_norm.h>

#include <algorithm>

#include "dtensor/redistribute.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

namespace {

Tensors tensors(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& t) {
  return {std::get<0>(t), std::get<1>(t), std::get<2>(t)};
}

}  // namespace

TEST_CASE("layer norm matches ATen in every layout") {
  OpCase c{"layer_norm", [](auto& t) { return Tensors{at::layer_norm(t[0], {4}, t[1], t[2])}; }, {{5, 3, 4}, {4}, {4}}};
  c.silent = [](const std::vector<Placement>& p) {
    return !p[0].is_sharded_on(2) && !p[0].is_partial() && p[1] == Replicate() && p[2] == Replicate();
  };
  check_op(c);
  check_op({"over two dims",
            [](auto& t) {
              return Tensors{at::layer_norm(t[0], {3, 4}, t[1], t[2])};
            },
            {{5, 3, 4}, {3, 4}, {3, 4}}});
  check_op({"without weights", [](auto& t) { return Tensors{at::layer_norm(t[0], {4})}; }, {{5, 3, 4}}});
  check_op({"weight alone", [](auto& t) { return Tensors{at::layer_norm(t[0], {4}, t[1])}; }, {{5, 4}, {4}}});
  OpCase frozen{"weight without gradient",
                [](auto& t) { return Tensors{at::layer_norm(t[0], {4}, t[1], t[2])}; },
                {{5, 4}, {4}, {4}}};
  frozen.grad = {true, false, true};
  check_op(frozen);
  OpCase stats{"native_layer_norm",
               [](auto& t) { return tensors(at::native_layer_norm(t[0], {4}, t[1], {}, 1e-5)); },
               {{5, 3, 4}, {4}}};
  stats.grad = {false, false};
  check_op(stats);
}

TEST_CASE("an error of normalized_shape has the sizes of the whole input") {
  const DeviceMesh mesh(World::local(2), {2}, {"x"});
  const auto x = distribute_tensor(at::rand({8, 6}), mesh, {Shard(0)});
  CHECK_THROWS_WITH(at::layer_norm(x, {5}), Catch::Contains("normalized_shape is [5]") && Catch::Contains("[8, 6]"));
  CHECK_THROWS_WITH(at::native_layer_norm(x, {5}, {}, {}, 1e-5), Catch::Contains("it has the sizes [8, 6]"));
}

TEST_CASE("layer norm keeps the dtype of its statistics") {
  OpCase c{"bfloat16",
           [](auto& t) { return tensors(at::native_layer_norm(t[0], {4}, t[1], t[2], 1e-5)); },
           {{5, 4}, {4}, {4}}};
  c.make = [](size_t, const auto& shape) { return at::rand(shape).to(at::kBFloat16); };
  c.tolerance = 0.02;
  c.grad = {false, false, false};
  c.partial_inputs = false;
  check_op(c);
  c.name = "bfloat16 with float weights";
  c.make = [](size_t i, const auto& shape) { return at::rand(shape).to(i == 0 ? at::kBFloat16 : at::kFloat); };
  check_op(c);
}

TEST_CASE("RMS norm matches ATen in every layout") {
  check_op({"rms_norm", [](auto& t) { return Tensors{at::rms_norm(t[0], {4}, t[1], 1e-5)}; }, {{5, 3, 4}, {4}}});
  check_op({"rms_norm without weight", [](auto& t) { return Tensors{at::rms_norm(t[0], {3, 4})}; }, {{5, 3, 4}}});
}

TEST_CASE("group norm matches ATen in every layout") {
  OpCase c{"group_norm", [](auto& t) { return Tensors{at::group_norm(t[0], 2, t[1], t[2])}; }, {{5, 4, 3}, {4}, {4}}};
  c.silent = [](const std::vector<Placement>& p) {
    return !p[0].is_sharded_on(1) && !p[0].is_sharded_on(2) && !p[0].is_partial() && p[1] == Replicate() &&
           p[2] == Replicate();
  };
  check_op(c);
  check_op({"without weights", [](auto& t) { return Tensors{at::group_norm(t[0], 2)}; }, {{3, 4, 2, 2}}});
  OpCase whole_groups{"groups that ranks have whole",
                      [](auto& t) { return Tensors{at::group_norm(t[0], 12, t[1], t[2])}; },
                      {{3, 24, 2}, {24}, {24}}};
  whole_groups.silent = [](const std::vector<Placement>& p) {
    const bool split = p[0] == Shard(0) || p[0] == Shard(1);
    return split && p[1] == Replicate() && p[2] == Replicate();
  };
  check_op(whole_groups, 40);
  OpCase stats{"native_group_norm",
               [](auto& t) { return tensors(at::native_group_norm(t[0], {}, {}, 5, 4, 6, 2, 1e-5)); },
               {{5, 4, 3, 2}}};
  stats.grad = {false};
  check_op(stats);
}

// CUDA has kernels of its own for these; only their layouts are tested.
TEST_CASE("fused RMS norm and its backward split rows, and weight gradients are sums") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto spec = [&](Shape sizes) { return Spec::get(mesh, {Replicate()}, sizes, at::kFloat); };
  const auto has = [](const std::vector<DimStrategy>& all, const Placements& outputs, const Placements& inputs) {
    return std::any_of(all.begin(), all.end(),
                       [&](const auto& s) { return s.outputs == outputs && s.inputs == inputs; });
  };
  const auto x = spec({6, 5, 4}), rstd = spec({6, 5, 1}), w = spec({4});
  const auto forward = OpCall::make("aten::_fused_rms_norm", {x, w}, {std::vector<int64_t>{4}, 1e-5});
  const auto forward_all = RuleRegistry::instance().find(forward.op)->per_dim(forward, 0);
  CHECK(forward_all.size() == 3);
  CHECK(has(forward_all, {Shard(1), Shard(1)}, {Shard(1), Replicate()}));
  const auto backward = OpCall::make("aten::_fused_rms_norm_backward", {x, x, rstd, w},
                                     {std::vector<int64_t>{4}, c10::List<bool>({true, true})});
  const auto rule = RuleRegistry::instance().find(backward.op);
  const auto backward_all = rule->per_dim(backward, 0);
  CHECK(has(backward_all, {Shard(0), Partial()}, {Shard(0), Shard(0), Shard(0), Replicate()}));
  // The gradient of a row is used by the weights and by the operators before: it is reduced here, once.
  for (const auto& s : backward_all) CHECK_FALSE(s.inputs[0].is_partial());
  const auto metas = rule->metas(backward);
  CHECK(metas.tensors[0]->sizes == Shape{6, 5, 4});
  CHECK(metas.tensors[1]->sizes == Shape{4});
}
