// Attention over a sharded sequence where gradients or values are easily lost: gradients of some arguments alone, of
// plain arguments, of half types in autocast, and masks of large negative numbers.
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <cmath>
#include <limits>

#include "tests/dtensor/attention_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

Tensors by_length(const Tensors& plain, const DeviceMesh& mesh) {
  Tensors split;
  for (const auto& t : plain) split.push_back(distribute_tensor(t.detach(), mesh, {Shard(2)}));
  return split;
}

TEST_CASE("attention over a sharded sequence has the gradients of each argument alone", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  for (const Method method : both_methods()) {
    const ContextParallel scope("cp", {.method = method});
    const Tensors plain = inputs_of({{.keys = 7}, true});
    const Tensors expected = torch::autograd::grad({attention(plain, {{}, true}).square().sum()}, plain);
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(static_cast<int>(method), i);
      Tensors split = by_length(plain, mesh);
      split[i].requires_grad_();
      attention(split, {{}, true}).square().sum().backward();
      for (size_t k = 0; k < 3; ++k) CHECK(split[k].grad().defined() == (k == i));
      CHECK(torch::allclose(full_tensor(split[i].grad()), expected[i]));

      for (auto& t : split) t.requires_grad_();
      const auto loss = attention(split, {{}, true}).square().sum();
      const CommDebugMode comm;
      CHECK(torch::allclose(full_tensor(torch::autograd::grad({loss}, {split[i]})[0]), expected[i]));
      // Gradients of keys and values travel only if they are asked for.
      if (method == Method::kRing) CHECK(comm.count(Collective::kPermute) == (i == 0 ? 3 : 6));
    }
  }
}

TEST_CASE("plain arguments of attention get gradients in an ImplicitReplication scope", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const ImplicitReplication replication;
  for (const Method method : both_methods()) {
    const ContextParallel scope("cp", {.method = method});
    const Tensors plain = inputs_of({{.keys = 7}});
    const Tensors expected = torch::autograd::grad({attention(plain, {}).square().sum()}, plain);
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(static_cast<int>(method), i);
      Tensors mixed = by_length(plain, mesh);
      mixed[i] = plain[i].detach().requires_grad_();
      attention(mixed, {}).square().sum().backward();
      REQUIRE(mixed[i].grad().defined());
      CHECK(torch::allclose(mixed[i].grad(), expected[i]));
    }
    const Tensors split = by_length(plain, mesh);
    const auto mask = torch::zeros({12, 7}, torch::kDouble).requires_grad_();
    CHECK_THROWS_WITH(torch::scaled_dot_product_attention(split[0], split[1], split[2], mask),
                      Catch::Contains("`attn_mask` requires grad"));
  }
}

TEST_CASE("queries whose mask adds one large negative number to every key weigh all keys", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors plain = inputs_of({}, torch::kFloat);
  auto mask = torch::zeros({12, 12});
  mask.select(0, 3).fill_(-1e9);
  mask.select(0, 7).fill_(std::numeric_limits<float>::lowest());
  mask.select(0, 8).fill_(-3e4);
  // Single precision rounds each score of rows 3 and 7 to the mask: equal weights, whose gradients are those of a mean.
  const auto scores = plain[0].matmul(plain[1].transpose(2, 3)).div(std::sqrt(3.)).add(mask);
  const auto expected = torch::softmax(scores, 3).matmul(plain[2]);
  const Tensors gradients = torch::autograd::grad({expected.square().sum()}, plain);
  for (const Method method : both_methods()) {
    CAPTURE(static_cast<int>(method));
    Tensors split = by_length(plain, mesh);
    for (auto& t : split) t.requires_grad_();
    const ContextParallel scope("cp", {.method = method});
    const auto out =
        torch::scaled_dot_product_attention(split[0], split[1], split[2], distribute_tensor(mask, mesh, {Replicate()}));
    CHECK(torch::allclose(full_tensor(out.detach()), expected, 1e-3, 1e-3));
    if (method == Method::kAllToAll) continue;  // ATen's kernel has the values, not these gradients
    out.square().sum().backward();
    for (size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(torch::allclose(full_tensor(split[i].grad()), gradients[i], 1e-3, 1e-3));
    }
  }
}

TEST_CASE("attention in autocast is that of half types, inside the ring as well", "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const AttentionCase c = {.mask = {12, 12}};
  const auto run = [&](bool autocast, Method method) {
    Tensors plain = inputs_of(c, torch::kFloat), leaves;
    Tensors halves;
    for (size_t i = 0; i < 3; ++i) {
      leaves.push_back(distribute_tensor(plain[i].detach().mul(4), mesh, {Shard(2)}).requires_grad_());
      halves.push_back(autocast ? leaves[i] : leaves[i].to(torch::kBFloat16));
    }
    halves.push_back(distribute_tensor(plain[3], mesh, {Replicate()}));
    const ContextParallel scope("cp", {.method = method});
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    const auto out = attention(halves, c);
    // Backward inside autocast, too.
    const auto gradients = torch::autograd::grad({out}, leaves, {torch::ones_like(out)});
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    Tensors results = {full_tensor(out.detach())};
    for (const auto& t : gradients) results.push_back(full_tensor(t));
    return results;
  };
  for (const Method method : both_methods()) {
    const Tensors expected = run(false, method), results = run(true, method);
    for (size_t i = 0; i < results.size(); ++i) {
      CAPTURE(static_cast<int>(method), i);
      CHECK(results[i].scalar_type() == expected[i].scalar_type());
      CHECK(torch::equal(results[i], expected[i]));
    }
  }
}

TEST_CASE("forward-mode derivatives of attention over a sharded sequence are an error before communication",
          "[context_parallel]") {
  const DeviceMesh mesh = cp_mesh(4);
  const Tensors split = by_length(inputs_of({}), mesh);
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto dual = at::_make_dual(split[1], split[2], static_cast<int64_t>(level));
  for (const Method method : {Method::kCheapest, Method::kRing, Method::kAllToAll}) {
    const ContextParallel scope("cp", {.method = method});
    const CommDebugMode comm;
    CHECK_THROWS_WITH(torch::scaled_dot_product_attention(split[0], dual, split[2]),
                      Catch::Contains("`key` has a tangent"));
    CHECK(comm.total() == 0);
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

}  // namespace
}  // namespace dtensor
