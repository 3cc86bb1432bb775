#include <torch/torch.h>

#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "plan/redistribute_plan.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::testing;
using Catch::Contains;
using Tensors = std::vector<at::Tensor>;

namespace {

Tensors flash(const Tensors& t, bool causal, const std::optional<at::Tensor>& mask = {}) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(t[0], t[1], t[2], 0., causal, mask);
  return {out, logsumexp.detach()};
}

std::string wrong(const at::Tensor& actual, const at::Tensor& expected) {
  return difference(actual, expected).value_or("");
}

}  // namespace

TEST_CASE("fused attention matches ATen in every layout") {
  const std::vector<int64_t> q = {5, 3, 4, 2}, k = {5, 3, 6, 2};
  OpCase c{"flash", [](auto& t) { return flash(t, false); }, {q, k, k}};
  c.silent = [](const std::vector<Placement>& p) {
    return p[0] == p[1] && p[1] == p[2] && (p[0] == Shard(0) || p[0] == Shard(1));
  };
  check_op(c);
  check_op({"causal", [](auto& t) { return flash(t, true); }, {q, q, q}});
  for (const auto& mask : std::vector<std::vector<int64_t>>{
           {4, 6}, {1, 1, 4, 6}, {5, 1, 4, 6}, {1, 3, 4, 6}, {5, 3, 4, 6}, {5, 1, 1, 6}}) {
    OpCase masked{"mask", [](auto& t) { return flash(t, false, t[3]); }, {q, k, k, mask}};
    masked.grad = {true, true, true, false};
    masked.name += " of " + std::to_string(mask.size()) + " dims, first " + std::to_string(mask[0]);
    masked.partial_inputs = false;
    check_op(masked, 32);
  }
  OpCase grouped{
      "fewer key heads", [](auto& t) { return flash(t, false); }, {{2, 6, 4, 2}, {2, 3, 5, 2}, {2, 3, 5, 2}}};
  grouped.grad = {false, false, false};  // ATen's backward needs equal heads
  check_op(grouped);
}

TEST_CASE("scaled_dot_product_attention matches ATen in every layout, on all of its paths") {
  const std::vector<int64_t> q = {3, 2, 4, 2}, k = {3, 2, 5, 2};
  check_op({"fused", [](auto& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2])}; }, {q, k, k}});
  OpCase mask{"mask",
              [](auto& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], t[3])}; },
              {q, k, k, {4, 5}}};
  mask.grad = {true, true, true, false};
  mask.partial_inputs = false;
  check_op(mask);
  mask.name = "boolean mask";
  mask.shapes[3] = {3, 1, 4, 5};
  mask.make = [](size_t i, const auto& shape) {
    auto t = torch::rand(shape, torch::kDouble);
    return i == 3 ? (t > 0.3).logical_or(torch::arange(5) == 0) : t;
  };
  check_op(mask, 32);
  OpCase math{"mask with gradient, so the math path",
              [](auto& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2], t[3])}; },
              {q, k, k, {4, 5}}};
  math.partial_inputs = false;
  check_op(math);
  check_op({"3 dims, so the math path",
            [](auto& t) { return Tensors{at::scaled_dot_product_attention(t[0], t[1], t[2])}; },
            {{3, 4, 2}, {3, 5, 2}, {3, 5, 2}}});
}

TEST_CASE("a causal mask on the math path is made in a MeshScope") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto q = torch::rand({5, 4, 2}, torch::kDouble);
  const auto expected = at::scaled_dot_product_attention(q, q, q, {}, 0., true);
  const auto dq = lay_out(q, mesh, {Shard(0)});
  MeshScope scope(mesh);
  CommDebugMode comm;
  const auto out = at::scaled_dot_product_attention(dq, dq, dq, {}, 0., true);
  CHECK(comm.total() == 0);
  CHECK(wrong(out, expected) == "");
}

TEST_CASE("the choice of a backend uses global metadata") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto q = torch::rand({3, 2, 4, 2});
  const auto dq = lay_out(q, mesh, {Shard(0)});
  CHECK(at::_fused_sdp_choice(dq, dq, dq) == at::_fused_sdp_choice(q, q, q));
  CHECK(at::_fused_sdp_choice(dq, dq, dq, {}, 0.5) == at::_fused_sdp_choice(q, q, q, {}, 0.5));
}

TEST_CASE("fused attention rejects dropout") {
  const auto q = lay_out(torch::rand({4, 2, 4, 2}), test_meshes()[0], {Shard(0)});
  CHECK_THROWS_AS(at::_scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.5), c10::NotImplementedError);
}

// CUDA's fused kernels cannot run here; deciding their layouts needs no GPU.
TEST_CASE("CUDA's fused attention: batch and heads are split, the generator's state is the same everywhere") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto spec = [&](const Placement& p, Shape sizes, c10::ScalarType dtype = at::kHalf) {
    return Spec::get(mesh, {p}, sizes, dtype);
  };
  for (const Placement& p : {Shard(0), Shard(1)}) {
    const auto q = spec(p, {8, 4, 64, 16}), k = spec(p, {8, 4, 33, 16}), lse = spec(p, {8, 4, 64}, at::kFloat),
               seed = spec(Replicate(), {2}, at::kUInt64), offset = spec(Replicate(), {}, at::kUInt64);
    const auto decide = [](const OpCall& call) {
      const auto plan = propagate(call);
      CHECK(plan->bytes() == 0);
      std::string text;
      for (const auto& o : plan->outputs) text += o ? o->to_short_string() + " " : "none ";
      return text;
    };
    const std::string s = to_string(p);
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_flash_attention", {q, k, k}, {0., false, false})) ==
          "f16[8, 4, 64, 16](" + s + ") f32[8, 4, 64](" + s + ") none none u64[2](R) u64[](R) f16[0](R) ");
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_flash_attention_backward",
                              {q, q, k, k, q, lse, nullptr, nullptr, seed, offset}, {64, 33, 0., false})) ==
          "f16[8, 4, 64, 16](" + s + ") f16[8, 4, 33, 16](" + s + ") f16[8, 4, 33, 16](" + s + ") ");
    const auto bias = spec(Replicate(), {1, 1, 64, 33});
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_efficient_attention", {q, k, k, bias}, {true, 0., false})) ==
          "f16[8, 4, 64, 16](" + s + ") f32[8, 4, 64](" + s + ") i64[](R) i64[](R) ");
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_efficient_attention_backward",
                              {q, q, k, k, bias, q, lse, offset, offset},
                              {0., c10::List<bool>({true, true, true, false}), false})) ==
          "f16[8, 4, 64, 16](" + s + ") f16[8, 4, 33, 16](" + s + ") f16[8, 4, 33, 16](" + s + ") none ");
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_cudnn_attention", {q, k, k, nullptr},
                              {true, 0., false, false})) ==
          "f16[8, 4, 64, 16](" + s + ") f32[8, 4, 64, 1](" + s + ") none none i64[](R) i64[](R) none ");
    CHECK(decide(OpCall::make("aten::_scaled_dot_product_cudnn_attention", {q, k, k, nullptr},
                              {false, 0., false, false})) ==
          "f16[8, 4, 64, 16](" + s + ") none none none i64[](R) i64[](R) none ");
  }
}

namespace {

// Forward and backward of an unchanged torch::nn::MultiheadAttention: results and gradients, in a fixed order.
Tensors run_attention(torch::nn::MultiheadAttention& module, const at::Tensor& x, const at::Tensor& memory,
                      const at::Tensor& padding, const at::Tensor& mask, const at::Tensor& seed) {
  auto [out, weights] = module(x, memory, memory, padding, /*need_weights=*/true, mask);
  out.backward(seed);
  Tensors results = {out.detach(), weights.detach(), x.grad(), memory.grad()};
  for (const auto& p : module->parameters()) results.push_back(p.grad());
  return results;
}

}  // namespace

TEST_CASE("torch::nn::MultiheadAttention: replicated and batch-sharded, with masks") {
  torch::manual_seed(3);
  constexpr int64_t kTarget = 4, kSource = 5, kBatch = 6, kFeatures = 8;
  const auto x = torch::rand({kTarget, kBatch, kFeatures}, torch::kDouble), seed = torch::rand_like(x);
  const auto memory = torch::rand({kSource, kBatch, kFeatures}, torch::kDouble);
  auto padding = torch::zeros({kBatch, kSource}, torch::kBool);
  padding[0][4] = padding[2][3] = padding[5][1] = true;
  const auto mask = torch::rand({kTarget, kSource}, torch::kDouble);

  for (bool masked : {false, true}) {
    torch::nn::MultiheadAttention module(torch::nn::MultiheadAttentionOptions(kFeatures, 2));
    module->to(torch::kDouble);
    Tensors values;
    for (const auto& p : module->parameters()) values.push_back(p.detach().clone());
    const auto expected = run_attention(module, x.clone().requires_grad_(), memory.clone().requires_grad_(),
                                        masked ? padding : at::Tensor(), masked ? mask : at::Tensor(), seed);
    for (const DeviceMesh& mesh : test_meshes()) {
      for (const Placement& batch : {Replicate(), Shard(1)}) {
        const Placements whole(mesh.ndim(), Replicate());
        Placements data = whole, data_rows = whole;
        data.back() = batch;
        if (batch.is_shard()) data_rows.back() = Shard(0);
        torch::NoGradGuard* no_grad = new torch::NoGradGuard;
        auto parameters = module->parameters();
        for (size_t i = 0; i < values.size(); ++i) {
          parameters[i].set_data(lay_out(values[i], mesh, whole));
          parameters[i].mutable_grad() = at::Tensor();
        }
        delete no_grad;
        const auto actual =
            run_attention(module, lay_out(x, mesh, data).requires_grad_(), lay_out(memory, mesh, data).requires_grad_(),
                          masked ? lay_out(padding, mesh, data_rows) : at::Tensor(),
                          masked ? lay_out(mask, mesh, whole) : at::Tensor(), lay_out(seed, mesh, data));
        REQUIRE(actual.size() == expected.size());
        for (size_t i = 0; i < actual.size(); ++i) {
          INFO("result " << i << " on " << mesh.to_string() << ", data " << to_string(data) << ", masked " << masked);
          CHECK(wrong(actual[i], expected[i]) == "");
        }
      }
    }
  }
}

TEST_CASE("the FLOP of causal attention are those of the keys that queries see") {
  const DeviceMesh mesh(World::abstract(2), {2}, {"tp"});
  const auto flops = [&](int64_t queries, int64_t keys, bool causal) {
    const at::Tensor q = zeros({3, 4, queries, 8}, mesh, {Shard(1)}).requires_grad_(),
                     k = zeros({3, 4, keys, 8}, mesh, {Shard(1)});
    CommDebugMode comm;
    const Tensors out = flash({q, k, k}, causal);
    const double forward = comm.flops();
    comm.reset();
    out[0].sum().backward();
    CHECK(comm.flops() == 2.5 * forward);
    return forward;
  };
  const double per_pair = 2. * 3 * 2 * (8 + 8);  // of two of the four heads
  CHECK(flops(6, 6, false) == per_pair * 36);
  CHECK(flops(6, 6, true) == per_pair * 21);
  CHECK(flops(6, 4, true) == per_pair * (10 + 2 * 4));
  CHECK(flops(4, 6, true) == per_pair * 10);
}
