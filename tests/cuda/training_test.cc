// Training on one GPU that several ranks share: parameters in host memory, a step as a CUDA graph.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/tempfile.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "checkpoint/serialize.h"
#include "dtensor/dtensor.h"
#include "mesh/memory_meter.h"
#include "tests/cuda/gpus.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

torch::nn::Sequential model_of(int64_t width) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(width, 2 * width + 1), torch::nn::GELU(),
                              torch::nn::Linear(2 * width + 1, width), torch::nn::LayerNorm(std::vector{width}),
                              torch::nn::Linear(width, 3));
  model->to(torch::kCUDA, torch::kDouble);
  return model;
}

void shard_each_layer(torch::nn::Sequential& model, const DeviceMesh& mesh, const FullyShardOptions& options) {
  for (const auto& layer : *model) {
    if (!layer.ptr()->parameters().empty()) fully_shard(*layer.ptr(), mesh, options);
  }
}

torch::nn::Sequential offloaded_model(int64_t width, const DeviceMesh& mesh) {
  auto model = model_of(width);
  FullyShardOptions options;
  options.offload = true;
  shard_each_layer(model, mesh, options);
  return model;
}

bool is_on(const at::Tensor& t, c10::DeviceType device) {
  const auto parts = to_local(t.detach());
  return std::all_of(parts.begin(), parts.end(),
                     [&](const at::Tensor& part) { return part.device().type() == device; });
}

Placements rows(const DeviceMesh& mesh) {
  Placements to(mesh.ndim(), Replicate());
  to[0] = Shard(0);
  return to;
}

// Losses of five steps of AdamW with clipped gradients, two batches a step.
std::vector<double> losses(torch::nn::Sequential& model, const DeviceMesh* mesh) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  std::vector<double> result;
  for (int64_t step = 0; step < 5; ++step) {
    optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    for (int64_t batch = 0; batch < 2; ++batch) {
      torch::manual_seed(100 + 2 * step + batch);
      at::Tensor x = torch::randn({8, 6}, torch::kDouble).cuda(), y = torch::randn({8, 3}, torch::kDouble).cuda();
      if (mesh != nullptr) x = distribute_tensor(x, *mesh, rows(*mesh)), y = distribute_tensor(y, *mesh, rows(*mesh));
      const at::Tensor loss = torch::mse_loss(model->forward(x), y);
      loss.backward();
      result.push_back(loss.item<double>());
    }
    torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5);
    optimizer.step();
  }
  return result;
}

}  // namespace

TEST_CASE("cuda: parameters that are offloaded train as on one device, and stay in host memory") {
  if (fewer_gpus_than(1)) return;
  auto plain = model_of(6);
  const auto expected = losses(plain, nullptr);
  const c10::Device gpu("cuda:0");
  for (const auto& shape : std::vector<std::vector<int64_t>>{{4}, {1}, {2, 2}}) {
    for (const bool prefetch : {false, true}) {
      CAPTURE(shape, prefetch);
      const int64_t ranks = shape.size() == 2 ? 4 : shape[0];
      const DeviceMesh mesh(World::local(ranks, gpu), shape);
      auto model = model_of(6);
      if (shape.size() == 2) {  // tensor parallel on the other mesh dim
        shard_parameter(*(*model)[0], "weight", mesh, {Replicate(), Shard(0)});
        shard_parameter(*(*model)[0], "bias", mesh, {Replicate(), Shard(0)});
        shard_parameter(*(*model)[2], "weight", mesh, {Replicate(), Shard(1)});
      }
      FullyShardOptions options;
      options.mesh_dim = mesh.names()[0];
      options.prefetch = prefetch;
      options.offload = true;
      shard_each_layer(model, mesh, options);
      const auto got = losses(model, &mesh);
      REQUIRE(got.size() == expected.size());
      for (size_t i = 0; i < got.size(); ++i) CHECK(std::abs(got[i] - expected[i]) < 1e-9);
      for (const auto& p : model->named_parameters()) {
        CAPTURE(p.key());
        CHECK(is_on(p.value(), at::kCPU));
        CHECK(is_on(p.value().grad(), at::kCPU));
        CHECK(DTensor(p.value().detach()).local(0).is_pinned());
        CHECK(full_tensor(p.value().detach())
                  .cpu()
                  .allclose(plain->named_parameters()[p.key()].detach().cpu(), 1e-8, 1e-10));
      }
    }
  }
}

TEST_CASE("cuda: operators take parameters in host memory beside tensors on the GPU") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(4, c10::Device("cuda:0")), {4});
  auto plain = model_of(6), model = offloaded_model(6, mesh);
  const at::Tensor x = torch::randn({8, 6}, torch::kDouble).cuda(), mask = torch::rand({13, 6}, torch::kDouble).cuda();
  // Penalties, masks of the parameter's size, numbers on the GPU, slices, a scaled loss, all in one.
  const auto loss_of = [](torch::nn::Sequential& m, const at::Tensor& in, const at::Tensor& of_mask) {
    const at::Tensor w = m->parameters()[0];
    return m->forward(in).square().mean() + 1e-3 * w.square().sum() + (w * of_mask).sum() +
           (w / (in.square().sum() + 1)).sum() + w.slice(0, 1, 5).exp().sum();
  };
  const at::Tensor expected = loss_of(plain, x, mask);
  const at::Tensor got =
      loss_of(model, distribute_tensor(x, mesh, {Shard(0)}), distribute_tensor(mask, mesh, {Shard(0)}));
  CHECK(std::abs(got.item<double>() - expected.item<double>()) < 1e-9);
  expected.backward();
  got.backward();
  for (const auto& p : model->named_parameters()) {
    CAPTURE(p.key());
    CHECK(is_on(p.value().grad(), at::kCPU));
    CHECK(full_tensor(p.value().grad()).cpu().allclose(plain->named_parameters()[p.key()].grad().cpu(), 1e-8, 1e-10));
  }
  CHECK_THROWS_AS(torch::autograd::grad({loss_of(model, distribute_tensor(x, mesh, {Shard(0)}),
                                                 distribute_tensor(mask, mesh, {Shard(0)}))},
                                        {model->parameters()[0]}, {}, std::nullopt, /*create_graph=*/true),
                  c10::NotImplementedError);
}

TEST_CASE("cuda: gradients of offloaded parameters are reduced later, scaled, and their states saved") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(4, c10::Device("cuda:0")), {4});
  auto plain = model_of(6), model = offloaded_model(6, mesh);
  torch::optim::AdamW a(plain->parameters(), 1e-2), b(model->parameters(), 1e-2);
  GradScaler scaler({.init_scale = 8});
  for (int step = 0; step < 3; ++step) {
    a.zero_grad();
    b.zero_grad();
    for (int batch = 0; batch < 2; ++batch) {
      torch::manual_seed(10 * step + batch);
      const at::Tensor x = torch::randn({8, 6}, torch::kDouble).cuda();
      plain->forward(x).square().mean().backward();
      std::optional<DelayGradientReduction> delayed;
      if (batch == 0) delayed.emplace();
      scaler.scale(model->forward(distribute_tensor(x, mesh, {Shard(0)})).square().mean()).backward();
      if (step == 1 && batch == 0) reduce_gradients(model->parameters());  // once more than needed
    }
    a.step();
    CHECK(scaler.step(b));
    scaler.update();
  }
  for (const auto& p : model->named_parameters()) {
    CAPTURE(p.key());
    CHECK(is_on(p.value().grad(), at::kCPU));
    CHECK(
        full_tensor(p.value().detach()).cpu().allclose(plain->named_parameters()[p.key()].detach().cpu(), 1e-8, 1e-10));
  }
  const auto file = c10::make_tempfile("dtensor-offload-");
  save(b, file.name);
  torch::optim::AdamW c(model->parameters(), 1e-2);
  load(c, file.name);
  CHECK_NOTHROW(c.step());
}

TEST_CASE("cuda: a model made without data gets its offloaded parameters in host memory") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(2, c10::Device("cuda:0")), {2});
  auto model = [&] {
    const MeshScope scope(mesh.meta());
    torch::nn::Linear linear(6, 4);
    return linear;
  }();
  FullyShardOptions options;
  options.offload = true;
  fully_shard(*model, mesh.meta(), options);
  to_empty(*model);
  for (const at::Tensor& p : model->parameters()) CHECK(is_on(p, at::kCPU));
}

TEST_CASE("cuda: offloaded parameters and optimizer states take no memory of the ranks between steps") {
  if (fewer_gpus_than(1)) return;
  const auto bytes_after_a_step = [](bool offload) {
    const DeviceMesh mesh(World::local(2, c10::Device("cuda:0")), {2});
    auto model = model_of(64);
    FullyShardOptions options;
    options.offload = offload;
    shard_each_layer(model, mesh, options);
    torch::optim::AdamW optimizer(model->parameters(), 1e-2);
    const at::Tensor x = distribute_tensor(torch::randn({8, 64}, torch::kDouble).cuda(), mesh, {Shard(0)});
    model->forward(x).square().sum().backward();
    optimizer.step();
    reshard(*model);
    return mesh.world().memory().live_bytes();
  };
  const int64_t on_gpu = bytes_after_a_step(false), in_host_memory = bytes_after_a_step(true);
  CAPTURE(on_gpu, in_host_memory);
  CHECK(in_host_memory * 20 < on_gpu);
}

TEST_CASE("cuda: a training step is captured as a CUDA graph, and its replays train as eager steps do") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(4, c10::Device("cuda:0")), {2, 2}, {"dp", "tp"});
  const auto build = [&] {
    auto model = model_of(8);
    shard_parameter(*(*model)[0], "weight", mesh, {Replicate(), Shard(0)});
    shard_parameter(*(*model)[0], "bias", mesh, {Replicate(), Shard(0)});
    shard_parameter(*(*model)[2], "weight", mesh, {Replicate(), Shard(1)});
    distribute_module(*model, mesh);
    return model;
  };
  auto eager = build(), captured = build();
  torch::optim::SGD a(eager->parameters(), 1e-2), b(captured->parameters(), 1e-2);
  torch::manual_seed(3);
  const at::Tensor x = distribute_tensor(torch::randn({8, 8}, torch::kDouble).cuda(), mesh, rows(mesh));
  const auto step = [&](torch::nn::Sequential& model, torch::optim::SGD& optimizer) {
    optimizer.zero_grad(/*set_to_none=*/true);
    const at::Tensor loss = model->forward(x).square().mean();
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  const auto stream = c10::cuda::getStreamFromPool();
  at::Tensor loss;
  at::cuda::CUDAGraph graph;
  constexpr int kWarmUp = 3, kReplays = 4;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    for (int i = 0; i < kWarmUp; ++i) step(captured, b);
    graph.capture_begin();
    loss = step(captured, b);
    graph.capture_end();
    for (int i = 0; i < kReplays; ++i) graph.replay();
    stream.synchronize();
  }
  at::Tensor expected;
  for (int i = 0; i < kWarmUp + kReplays; ++i) expected = step(eager, a);
  CHECK(std::abs(loss.item<double>() - expected.item<double>()) < 1e-12);
  for (const auto& p : captured->named_parameters()) {
    CAPTURE(p.key());
    CHECK(full_tensor(p.value().detach()).allclose(full_tensor(eager->named_parameters()[p.key()].detach())));
  }
}

TEST_CASE("cuda: random numbers are refused in a CUDA graph, whose replays would repeat them") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(2, c10::Device("cuda:0")), {2});
  const at::Tensor x = distribute_tensor(torch::ones({8, 8}, torch::kCUDA), mesh, rows(mesh));
  torch::dropout(x, 0.5, /*train=*/true);
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  CHECK_THROWS_AS(torch::dropout(x, 0.5, /*train=*/true), c10::NotImplementedError);
  graph.capture_end();
}

TEST_CASE("cuda: a gradient scaler takes parameters on several meshes") {
  if (fewer_gpus_than(1)) return;
  const World world = World::local(4, c10::Device("cuda:0"));
  const DeviceMesh first(world, {2}, {"a"}, {0, 1}), second(world, {2}, {"b"}, {2, 3});
  for (const float bad : {0.f, INFINITY}) {
    std::vector<at::Tensor> parameters;
    for (const DeviceMesh& mesh : {first, second}) {
      parameters.push_back(distribute_tensor(torch::ones({4, 2}, torch::kCUDA), mesh, {Shard(0)}).requires_grad_());
      const at::Tensor grad = torch::full({4, 2}, mesh == second ? bad : 1.f, torch::kCUDA);
      parameters.back().mutable_grad() = distribute_tensor(grad, mesh, {Shard(0)});
    }
    torch::optim::SGD optimizer(parameters, 0.1);
    GradScaler scaler({.init_scale = 1});
    CHECK(scaler.step(optimizer) == (bad == 0));
  }
}

TEST_CASE("cuda: fused optimizers take plain numbers in host memory") {
  if (fewer_gpus_than(1)) return;
  const DeviceMesh mesh(World::local(2, c10::Device("cuda:0")), {2});
  const auto step = [](const auto& lay_out, c10::Device numbers) {
    torch::manual_seed(0);
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 4; ++i) tensors.push_back(lay_out(torch::rand({4, 2}).cuda()));
    const auto options = at::TensorOptions(at::kFloat).device(numbers);
    at::_fused_adamw_({tensors[0]}, {tensors[1]}, {tensors[2]}, {tensors[3]}, {}, {at::ones({}, options)},
                      at::full({}, 0.1, at::kFloat), 0.9, 0.99, 0.01, 1e-8, false, false, at::full({1}, 2, options),
                      at::zeros({1}, options));
    return tensors[0];
  };
  const at::Tensor expected = step([](const at::Tensor& t) { return t; }, c10::Device("cuda:0"));
  for (const char* numbers : {"cuda:0", "cpu"}) {
    CAPTURE(numbers);
    const at::Tensor got =
        step([&](const at::Tensor& t) { return distribute_tensor(t, mesh, {Shard(0)}); }, c10::Device(numbers));
    CHECK(full_tensor(got).allclose(expected));
  }
}

}  // namespace dtensor
