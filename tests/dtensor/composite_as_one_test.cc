// Composite operators that are decided as one compute what the operators compute that they are composed of.
#include <ATen/autocast_mode.h>
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/nn.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/context_parallel.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/parallelize_module.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "propagation/strategy_cache.h"
#include "tests/dtensor/compared_calls.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::check_same_metadata;
using testing::Sample;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

std::map<std::string, Sample> composite_samples() {
  std::map<std::string, Sample> samples;
  const auto linear = [](const Tensors& t) {
    return t.size() > 2 ? at::linear(t[0], t[1], t[2]) : at::linear(t[0], t[1]);
  };
  samples["linear of matrices"] = {{{4, 6}, {8, 6}}, linear};
  samples["linear of a vector"] = {{{6}, {8, 6}, {8}}, linear};
  samples["linear"] = {{{5, 4, 6}, {8, 6}}, linear};
  samples["linear with bias"] = {{{5, 4, 6}, {8, 6}, {8}}, linear};
  const auto matmul = [](const Tensors& t) { return at::matmul(t[0], t[1]); };
  samples["matmul"] = {{{5, 4, 6}, {6, 8}}, matmul};
  samples["matmul of batches"] = {{{5, 4, 6}, {5, 6, 3}}, matmul};
  samples["matmul, broadcast"] = {{{4, 6}, {5, 6, 3}}, matmul};
  samples["matmul of vectors"] = {{{6}, {6}}, matmul};
  samples["matmul of batches with dims of size 1"] = {{{1, 4, 4, 6}, {5, 1, 6, 4}}, matmul};
  samples["einsum of batches"] = {{{5, 4, 6}, {5, 6, 3}}, [](const Tensors& t) {
                                    return at::einsum("bij,bjk->bki", {t[0], t[1]});
                                  }};
  samples["einsum, contracted"] = {{{5, 4, 6}, {4, 6, 4}}, [](const Tensors& t) {
                                     return at::einsum("bij,ijk->bk", {t[0], t[1]});
                                   }};
  samples["einsum with a diagonal"] = {{{4, 4, 6}, {4, 6}}, [](const Tensors& t) {
                                         return at::einsum("iij,ij->i", {t[0], t[1]});
                                       }};
  samples["layer_norm"] = {{{5, 4, 6}, {6}, {6}},
                           [](const Tensors& t) { return at::layer_norm(t[0], {6}, t[1], t[2]); }};
  samples["layer_norm without weight"] = {{{5, 4, 6}}, [](const Tensors& t) { return at::layer_norm(t[0], {4, 6}); }};
  samples["rms_norm"] = {{{5, 4, 6}, {6}}, [](const Tensors& t) { return at::rms_norm(t[0], {6}, t[1], 1e-5); }};
  samples["softmax"] = {{{5, 4, 6}}, [](const Tensors& t) { return at::softmax(t[0], -1); }};
  samples["softmax over the batch"] = {{{5, 4, 6}}, [](const Tensors& t) { return at::softmax(t[0], 0); }};
  samples["log_softmax"] = {{{5, 4, 6}}, [](const Tensors& t) { return at::log_softmax(t[0], 1, at::kDouble); }};
  const std::vector<std::vector<int64_t>> qkv = {{5, 3, 6, 8}, {5, 3, 6, 8}, {5, 3, 6, 8}};
  samples["attention"] = {qkv, [](const Tensors& t) { return at::scaled_dot_product_attention(t[0], t[1], t[2]); }};
  samples["causal attention"] = {qkv, [](const Tensors& t) {
                                   return at::scaled_dot_product_attention(t[0], t[1], t[2], {}, 0, /*is_causal=*/true);
                                 }};
  samples["attention with a mask"] = {{{5, 3, 6, 8}, {5, 3, 6, 8}, {5, 3, 6, 8}, {5, 3, 6, 6}}, [](const Tensors& t) {
                                        return at::scaled_dot_product_attention(t[0], t[1], t[2], t[3]);
                                      }};
  return samples;
}

// Placements of a tensor with `ndim` dims, on one mesh dim.
std::vector<Placement> placements_to_try(int64_t ndim) {
  std::vector<Placement> all = {Replicate()};
  for (int64_t d = 0; d < ndim; ++d) all.push_back(Shard(d));
  return all;
}

// Cached decisions for composite operators.
int64_t calls_as_one(const DeviceMesh& mesh) {
  const std::string dump = strategy_cache(mesh.world()).dump();
  int64_t count = 0;
  for (const char* op : {"linear(", "matmul(", "einsum(", "aten::layer_norm(", "aten::rms_norm(", "aten::softmax.int(",
                         "aten::log_softmax.int(", "aten::scaled_dot_product_attention("}) {
    for (size_t at = dump.find(op); at != std::string::npos; at = dump.find(op, at + 1)) ++count;
  }
  return count;
}

void check_same_parts(const Tensor& a, const Tensor& b) {
  check_same_metadata(a, b);
  const RankTensors &x = meta_without_sync(a).locals, &y = meta_without_sync(b).locals;
  for (size_t r = 0; r < x.size(); ++r) CHECK(torch::allclose(x[r], y[r], 1e-12, 1e-14));
}

// Calls the sample three times: observed, so that it is decided by its parts, and twice on its own.
void check_call(const Sample& sample, const DeviceMesh& mesh, const std::vector<Placement>& layouts) {
  torch::manual_seed(4);
  Tensors plain, inputs;
  std::string text;
  for (size_t k = 0; k < layouts.size(); ++k) {
    plain.push_back(torch::rand(sample.inputs[k], torch::kDouble));
    Placements placements(static_cast<size_t>(mesh.ndim()), layouts[k]);
    if (mesh.ndim() > 1) placements[0] = Replicate();
    inputs.push_back(redistribute(distribute_tensor(plain.back(), mesh), placements) * 1);
    text += to_string(placements) + " ";
  }
  CAPTURE(text);
  const auto call_by_parts = [&] {
    const CommDebugMode observed;
    return sample.call(inputs);
  };
  const Tensor by_parts = call_by_parts();
  const Tensor first = sample.call(inputs), second = sample.call(inputs);
  CHECK(torch::allclose(full_tensor(by_parts), sample.call(plain), 1e-10, 1e-12));
  check_same_parts(first, by_parts);
  check_same_parts(second, by_parts);
}

// Calls f(layouts) for all placements of inputs of these sizes, up to `most` of them.
void for_each_layout(const Sample& sample, const std::function<void(const std::vector<Placement>&)>& f) {
  std::vector<Placement> layouts;
  const std::function<void(size_t)> choose = [&](size_t k) {
    if (k == sample.inputs.size()) return f(layouts);
    // The fourth input of attention would make some hundred more.
    for (const Placement& p : placements_to_try(static_cast<int64_t>(sample.inputs[k].size()))) {
      if (k > 2 && !(p == layouts[0])) continue;
      layouts.push_back(p);
      choose(k + 1);
      layouts.pop_back();
    }
  };
  choose(0);
}

TEST_CASE("composite operators decided as one give the results and layouts of their parts", "[dtensor][composites]") {
  const bool inference = GENERATE(false, true);
  const torch::NoGradGuard no_grad;
  const c10::InferenceMode mode(inference);
  for (const auto& [name, sample] : composite_samples()) {
    const DeviceMesh mesh(World::local(2), {2}, {"tp"});
    INFO(name);
    for_each_layout(sample, [&, &sample = sample](const auto& layouts) { check_call(sample, mesh, layouts); });
    const bool gives_view = !inference && name.substr(0, 6) == "einsum";  // in autograd's terms
    CHECK((calls_as_one(mesh) > 0) == !gives_view);
  }
}

TEST_CASE("composite operators decided as one are right for uneven parts and on two mesh dims",
          "[dtensor][composites]") {
  const c10::InferenceMode inference;
  for (const char* name : {"linear with bias", "matmul of batches", "layer_norm", "attention"}) {
    const Sample sample = composite_samples().at(name);
    INFO(name);
    const DeviceMesh uneven(World::local(3), {3}), grid(World::local(4), {2, 2});
    for (const int64_t d : {0, 1}) {
      std::vector<Placement> layouts(sample.inputs.size(), Replicate());
      for (size_t k = 0; k < layouts.size(); ++k) {
        if (sample.inputs[k].size() > 2) layouts[k] = Shard(d);
      }
      check_call(sample, uneven, layouts);
      check_call(sample, grid, layouts);
    }
    CHECK(calls_as_one(uneven) > 0);
    CHECK(calls_as_one(grid) > 0);
  }
}

struct SmallLinear {
  DeviceMesh mesh{World::local(2), {2}, {"tp"}};
  Tensor x = distribute_tensor(torch::rand({2, 4, 6}), mesh, {Shard(0)}) * 1;
  Tensor w = distribute_tensor(torch::rand({8, 6}), mesh, {Replicate()});

  Tensor call() const { return at::linear(x, w); }
  CacheStats stats() const { return strategy_cache(mesh.world()).stats(); }
};

TEST_CASE("a composite operator decided as one is one hit", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const SmallLinear linear;
  linear.call();
  const CacheStats before = linear.stats();
  linear.call();
  CHECK(linear.stats().hits - before.hits == 1);
  CHECK(linear.stats().misses == before.misses);
  CHECK(linear.stats().size == before.size);
}

TEST_CASE("a call that autograd records is decided by its parts", "[dtensor][composites]") {
  SmallLinear linear;
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) linear.call();
  }
  CHECK(calls_as_one(linear.mesh) > 0);
  linear.w.requires_grad_();
  const Tensor y = linear.call();
  REQUIRE(y.requires_grad());
  y.sum().backward();
  CHECK(torch::allclose(full_tensor(linear.w.grad()), full_tensor(linear.x).sum({0, 1}).expand({8, 6})));
  const torch::NoGradGuard no_grad;
  CHECK_FALSE(linear.call().requires_grad());
}

TEST_CASE("a call with tangents is decided by its parts", "[dtensor][composites]") {
  const SmallLinear linear;
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 2; ++i) linear.call();
  }
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const Tensor dual = at::_make_dual(linear.x, linear.x * 2, static_cast<int64_t>(level));
    const Tensor tangent = std::get<1>(at::_unpack_dual(at::linear(dual, linear.w), static_cast<int64_t>(level)));
    REQUIRE(tangent.defined());
    CHECK(torch::allclose(full_tensor(tangent), full_tensor(linear.call()) * 2));
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

TEST_CASE("autocast applies to a composite operator that was decided as one", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const SmallLinear linear;
  for (int i = 0; i < 2; ++i) CHECK(linear.call().scalar_type() == at::kFloat);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor y = linear.call();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  CHECK(y.scalar_type() == at::kBFloat16);
}

TEST_CASE("observers see the parts of a composite operator that was decided as one", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const SmallLinear linear;
  for (int i = 0; i < 2; ++i) linear.call();
  CommDebugMode comm;
  linear.call();
  CHECK(comm.flops() == 2. * 4 * 6 * 8);
}

TEST_CASE("a frozen strategy cache lets composite operators be decided as one", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const SmallLinear linear;
  {
    const CommDebugMode observed;
    linear.call();
  }
  strategy_cache(linear.mesh.world()).freeze();
  for (int i = 0; i < 2; ++i) linear.call();
  CHECK(calls_as_one(linear.mesh) > 0);
  CHECK_THROWS_WITH(at::linear(linear.x.slice(1, 0, 2), linear.w), Catch::Contains("frozen"));
}

TEST_CASE("attention decided as one follows a ContextParallel scope", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"cp"});
  const Tensor plain = torch::rand({2, 2, 8, 4}), q = distribute_tensor(plain, mesh, {Replicate()}) * 1;
  const auto attend = [&] { return at::scaled_dot_product_attention(q, q, q); };
  for (int i = 0; i < 2; ++i) attend();
  CHECK(calls_as_one(mesh) > 0);
  const ContextParallel scope("cp");
  const Tensor result = attend();
  CHECK(spec_of(result)->placements() == Placements{Shard(2)});
  CHECK(torch::allclose(full_tensor(result), at::scaled_dot_product_attention(plain, plain, plain), 1e-5, 1e-6));
}

TEST_CASE("attention on a rank without heads is decided by its parts", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  const Tensor plain = torch::rand({2, 2, 6, 4}), q = distribute_tensor(plain, mesh, {Shard(1)}) * 1;
  for (int i = 0; i < 3; ++i) {
    const Tensor result = at::scaled_dot_product_attention(q, q, q);
    CHECK(torch::allclose(full_tensor(result), at::scaled_dot_product_attention(plain, plain, plain), 1e-5, 1e-6));
  }
  CHECK(calls_as_one(mesh) == 0);
}

TEST_CASE("composite operators of modules with a style are decided as one", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Linear(8, 6));
  const Tensor plain = torch::rand({2, 4, 6}), expected = model->forward(plain);
  parallelize_module(*model, mesh, {{"0", ColwiseParallel()}, {"1", RowwiseParallel()}});
  const Tensor x = distribute_tensor(plain, mesh, {Replicate()});
  for (int i = 0; i < 3; ++i) {
    const Tensor y = model->forward(x);
    CHECK(spec_of(y)->placements() == Placements{Replicate()});
    CHECK(torch::allclose(full_tensor(y), expected, 1e-5, 1e-6));
  }
  CHECK(calls_as_one(mesh) > 0);
  CommDebugMode comm;
  model->forward(x);
  CHECK(comm.total() == 1);
}

TEST_CASE("composite operators decided as one run in a MeshScope", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const SmallLinear linear;
  const Tensor expected = full_tensor(linear.call());
  const MeshScope scope(linear.mesh);
  for (int i = 0; i < 3; ++i) CHECK(torch::equal(full_tensor(linear.call()), expected));
}

TEST_CASE("a composite operator without tensors gives LibTorch's error in a MeshScope", "[dtensor][composites]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const MeshScope scope(mesh);
  CHECK_THROWS_WITH(at::einsum("i->i", at::TensorList()), Catch::Contains("at least one operand"));
}

TEST_CASE("a Partial input is moved by the parts of a composite operator", "[dtensor][composites]") {
  const torch::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor plain = torch::rand({2, 4, 6}), w = torch::rand({8, 6}), b = torch::rand({8});
  const Tensor x = redistribute(distribute_tensor(plain, mesh), {Partial()}) * 1;
  for (int i = 0; i < 3; ++i) {
    const Tensor y = at::linear(x, distribute_tensor(w, mesh), distribute_tensor(b, mesh));
    CHECK(torch::allclose(full_tensor(y), at::linear(plain, w, b), 1e-5, 1e-6));
  }
  CHECK(calls_as_one(mesh) == 0);
}

}  // namespace
}  // namespace dtensor
