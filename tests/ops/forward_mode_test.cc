// Forward-mode AD: tangents of distributed tensors equal those of plain ones.
#include <ATen/ops/_pad_circular.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/nn/functional.h>

#include <functional>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

struct DualLevel {
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  ~DualLevel() { torch::autograd::ForwardADLevel::release_idx(level); }
};

// x has a tangent; w and b have none.
using Function = std::function<Tensor(const Tensor& x, const Tensor& w, const Tensor& b)>;

std::vector<std::pair<const char*, Function>> functions() {
  return {
      {"mul", [](auto& x, auto& w, auto&) { return x * w; }},
      {"square", [](auto& x, auto&, auto&) { return x * x; }},
      {"numbers", [](auto& x, auto&, auto&) { return 2 * x / 3 + 1; }},
      {"div", [](auto& x, auto& w, auto&) { return x / w - w / x; }},
      {"broadcast", [](auto& x, auto&, auto& b) { return x * b + b; }},
      {"mm", [](auto& x, auto& w, auto&) { return x.mm(w); }},
      {"dot", [](auto& x, auto& w, auto&) { return x.select(1, 0).dot(w.select(1, 1)) * x; }},
      {"mm with itself", [](auto& x, auto&, auto&) { return x.mm(x.t()); }},
      {"linear", [](auto& x, auto& w, auto& b) { return F::linear(x, w, b); }},
      {"sum", [](auto& x, auto&, auto&) { return x.sum(0); }},
      {"mean", [](auto& x, auto&, auto&) { return x.mean(); }},
      {"norm", [](auto& x, auto&, auto&) { return torch::linalg_vector_norm(x, 2); }},
      {"max", [](auto& x, auto&, auto&) { return std::get<0>(x.max(0)); }},
      {"sin", [](auto& x, auto&, auto&) { return x.sin().exp(); }},
      {"sgn", [](auto& x, auto& w, auto&) { return x.sgn() + x.clone().sgn_() * w; }},
      {"fft of padded rows", [](auto& x, auto&, auto&) { return torch::fft_fft(x, 7, 1); }},
      {"circular padding",
       [](auto& x, auto&, auto&) {
         return at::_pad_circular(x.unsqueeze(0), {1, 2}).squeeze(0);
       }},
      {"gelu", [](auto& x, auto&, auto&) { return torch::gelu(x); }},
      {"softmax", [](auto& x, auto&, auto&) { return x.softmax(1) + x.softmax(0); }},
      {"log_softmax", [](auto& x, auto&, auto&) { return x.log_softmax(0); }},
      {"mse_loss", [](auto& x, auto& w, auto&) { return torch::mse_loss(x, w); }},
      {"layer_norm", [](auto& x, auto&, auto& b) { return torch::layer_norm(x, {4}, b, b); }},
      {"cat",
       [](auto& x, auto& w, auto&) {
         return torch::cat({x, w});
       }},
      {"views", [](auto& x, auto&, auto&) { return x.view(-1).slice(0, 1, 7) * x.t().reshape(-1).slice(0, 2, 8); }},
      {"in place", [](auto& x, auto& w, auto&) { return x.clone().mul_(w).add_(x); }},
      {"into plain values", [](auto& x, auto& w, auto&) { return torch::zeros_like(w).copy_(x); }},
      {"clone", [](auto& x, auto&, auto&) { return x.clone(); }},
  };
}

}  // namespace

TEST_CASE("Forward mode: tangents equal those of plain tensors", "[forward_mode]") {
  torch::manual_seed(0);
  const auto options = torch::kDouble;
  const Tensor x = torch::rand({5, 4}, options), w = torch::rand({4, 4}, options), b = torch::rand({4}, options);
  const Tensor other = torch::rand({5, 4}, options), tangent = torch::rand({5, 4}, options);
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(2), {2}), DeviceMesh(World::local(3), {3})}) {
    for (const auto& [name, f] : functions()) {
      const bool square = std::string(name) == "mm" || std::string(name) == "linear";
      const Tensor& second = square ? w : other;
      DualLevel level;
      const auto [value, expected] =
          at::_unpack_dual(f(at::_make_dual(x, tangent, level.level), second, b), level.level);
      for (const Placements& p : {Placements{Replicate()}, Placements{Shard(0)}, Placements{Shard(1)}}) {
        for (const Placements& q : {p, Placements{Replicate()}}) {
          INFO(name << " on " << mesh.size() << ": " << to_string(p) << to_string(q));
          const Tensor dual =
              at::_make_dual(distribute_tensor(x, mesh, p), distribute_tensor(tangent, mesh, q), level.level);
          const Tensor result = f(dual, distribute_tensor(second, mesh, {Shard(1)}), distribute_tensor(b, mesh));
          const auto [primal, got] = at::_unpack_dual(result, level.level);
          REQUIRE(is_dtensor(got));
          CHECK(torch::allclose(full_tensor(primal), value));
          CHECK(torch::allclose(full_tensor(got), expected));
        }
      }
    }
  }
}

TEST_CASE("Forward mode: redistributions move tangents", "[forward_mode]") {
  const Tensor x = torch::rand({5, 4}, torch::kDouble), tangent = torch::rand({5, 4}, torch::kDouble);
  const DeviceMesh mesh(World::local(3), {3});
  const Placements row{Shard(0)}, column{Shard(1)};
  for (const bool recorded : {false, true}) {
    for (const Placements& to : {row, column, Placements{Replicate()}, Placements{Partial()}}) {
      INFO(to_string(to) << recorded);
      DualLevel level;
      const Tensor leaf = distribute_tensor(x, mesh, row).requires_grad_(recorded);
      const Tensor dual = at::_make_dual(leaf, distribute_tensor(tangent, mesh, column), level.level);
      const Tensor moved = redistribute(dual, to);
      CHECK(internal::spec_of(moved)->placements() == to);
      CHECK(moved.requires_grad() == recorded);
      for (const Tensor& whole : {full_tensor(moved), full_tensor(dual)}) {
        const auto [primal, got] = at::_unpack_dual(whole, level.level);
        CHECK(primal.equal(x));
        REQUIRE(got.defined());
        CHECK(got.equal(tangent));
      }
      if (recorded) CHECK(full_tensor(torch::autograd::grad({moved.sum()}, {leaf})[0]).equal(torch::ones_like(x)));
    }
  }
}

TEST_CASE("Forward mode: redistributions move tangents of maxima, which no sum reduces", "[forward_mode]") {
  const Tensor x = torch::rand({5, 4}, torch::kDouble), tangent = torch::rand({5, 4}, torch::kDouble);
  const DeviceMesh mesh(World::local(3), {3});
  DualLevel level;
  const Tensor expected = std::get<1>(at::_unpack_dual(at::_make_dual(x, tangent, level.level).amax(0), level.level));
  const Tensor dual =
      at::_make_dual(distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(tangent, mesh, {Shard(0)}), level.level);
  const Tensor most = dual.amax(0);
  REQUIRE(internal::spec_of(most)->has_partial());
  for (const Tensor& whole :
       {full_tensor(most), full_tensor(redistribute(most, {Shard(0)})),
        full_tensor(redistribute(redistribute(most, {Replicate()}), {Partial(ReduceOp::kMax)}))}) {
    const auto [primal, got] = at::_unpack_dual(whole, level.level);
    CHECK(primal.equal(x.amax(0)));
    REQUIRE(got.defined());
    CHECK(got.equal(expected));
  }
}

TEST_CASE("Forward mode: full_tensor() on the device meta keeps the tangent", "[forward_mode]") {
  const DeviceMesh mesh = DeviceMesh(World::local(3), {3}).meta();
  DualLevel level;
  const Tensor x = zeros({6, 4}, mesh, {Shard(0)});
  const Tensor whole = full_tensor(at::_make_dual(x, zeros({6, 4}, mesh, {Shard(1)}), level.level));
  CHECK(whole.is_meta());
  CHECK(std::get<1>(at::_unpack_dual(whole, level.level)).defined());
}

TEST_CASE("Forward mode over backward gives a Hessian-vector product", "[forward_mode]") {
  torch::manual_seed(0);
  const Tensor x = torch::rand({5, 4}, torch::kDouble), v = torch::rand({5, 4}, torch::kDouble);
  const auto product = [&](const std::function<Tensor(const Tensor&)>& lay_out) {
    DualLevel level;
    const Tensor leaf = lay_out(x).requires_grad_();  // its gradient has a tangent, too
    const Tensor dual = at::_make_dual(leaf, lay_out(v), level.level);
    const Tensor gradient = torch::autograd::grad({(dual.sin() * dual.pow(3)).sum()}, {leaf}, {}, true, true)[0];
    return std::get<1>(at::_unpack_dual(gradient, level.level));
  };
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor expected = product([](const Tensor& t) { return t.clone(); });
  CHECK(torch::allclose(full_tensor(product([&](const Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}); })),
                        expected));
}

TEST_CASE("Forward mode: a plain tangent of a distributed tensor is an error", "[forward_mode]") {
  const DeviceMesh mesh(World::local(2), {2});
  const Tensor plain = torch::ones({4, 4}), distributed = distribute_tensor(plain, mesh, {Shard(0)});
  DualLevel level;
  CHECK_THAT(error_text([&] { at::_make_dual(distributed, plain, level.level); }),
             Catch::Contains("forward-mode AD") && Catch::Contains("'tangent' is a plain tensor"));
  CHECK_THAT(error_text([&] { at::_make_dual(plain, distributed, level.level); }),
             Catch::Contains("forward-mode AD") && Catch::Contains("'primal' is a plain tensor"));
}

}  // namespace dtensor::testing
