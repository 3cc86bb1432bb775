// Four ranks on one GPU: the same code, the same results.
#include <torch/nn.h>
#include <torch/optim.h>

#include "dtensor/dtensor.h"
#include "ops/embedding/mask_buffer.h"
#include "ops/embedding/masked_embedding.h"
#include "ops/embedding/masked_embedding_bag.h"
#include "ops/loss/cross_entropy_part.h"
#include "placement/parse_placements.h"
#include "tests/cuda/gpus.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

DeviceMesh gpu_mesh() { return DeviceMesh(World::local(4, c10::Device("cuda:0")), {2, 2}, {"dp", "tp"}); }

}  // namespace

TEST_CASE("cuda: every redistribution between the common layouts gives the whole value back") {
  if (fewer_gpus_than(1)) return;
  const auto mesh = gpu_mesh();
  const auto x = torch::randn({7, 5}, torch::kCUDA);
  for (const char* from : {"RR", "S(0)R", "S(0)S(1)", "S(1)S(0)", "S(0)S(0)", "RS(1)"}) {
    for (const char* to : {"RR", "S(0)R", "S(0)S(1)", "S(1)S(0)", "S(0)S(0)", "RS(1)", "P(sum)R"}) {
      INFO(from << " -> " << to);
      const auto t = distribute_tensor(x, mesh, *parse_placements(from));
      CHECK(torch::allclose(full_tensor(redistribute(t, *parse_placements(to))), x));
    }
  }
}

TEST_CASE("cuda: a vocabulary-parallel model trains as on one device") {
  if (fewer_gpus_than(1)) return;
  const auto build = [] {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Embedding(13, 8), torch::nn::Linear(8, 16), torch::nn::GELU(),
                                torch::nn::Linear(16, 13));
    model->to(torch::kCUDA, torch::kDouble);
    return model;
  };
  auto plain = build(), sharded = build();
  const auto mesh = gpu_mesh();
  distribute_module(*sharded, mesh, [](const std::string& name, torch::nn::Module& m, const DeviceMesh& mesh) {
    if (name == "0" || name == "1" || name == "3")
      shard_parameter(m, "weight", mesh, {Replicate(), Shard(name == "3" ? 1 : 0)});
    if (name == "1") shard_parameter(m, "bias", mesh, {Replicate(), Shard(0)});
  });
  torch::optim::AdamW a(plain->parameters(), 1e-2), b(sharded->parameters(), 1e-2);
  for (int i = 0; i < 5; ++i) {
    const auto ids = torch::randint(13, {6, 4}, torch::kLong).to(torch::kCUDA),
               targets = torch::randint(13, {24}, torch::kLong).to(torch::kCUDA);
    a.zero_grad();
    b.zero_grad();
    const auto expected = torch::nn::functional::cross_entropy(plain->forward(ids).view({-1, 13}), targets);
    expected.backward();
    const auto got = torch::nn::functional::cross_entropy(
        sharded->forward(distribute_tensor(ids, mesh, {Shard(0), Replicate()})).view({-1, 13}),
        distribute_tensor(targets, mesh, {Shard(0), Replicate()}));
    got.backward();
    a.step();
    b.step();
    CHECK(std::abs(got.item<double>() - expected.item<double>()) < 1e-9);
  }
}

TEST_CASE("cuda: attention without gradients equals that on one device") {
  if (fewer_gpus_than(1)) return;
  torch::manual_seed(0);
  const torch::NoGradGuard no_grad;
  const auto mesh = gpu_mesh();
  const auto q = torch::randn({4, 4, 64, 64}).to(torch::kCUDA, torch::kBFloat16);
  const auto on_mesh = distribute_tensor(q, mesh, {Shard(0), Shard(1)});
  for (const bool cudnn : {true, false}) {  // where it can be had; Hopper's first choice
    at::globalContext().setSDPUseCuDNN(cudnn);
    const auto expected = at::scaled_dot_product_attention(q, q, q);
    CHECK(torch::allclose(full_tensor(at::scaled_dot_product_attention(on_mesh, on_mesh, on_mesh)), expected, 1e-2,
                          1e-2));
  }
  at::globalContext().setSDPUseCuDNN(true);
}

TEST_CASE("cuda: a number may lie on the GPU") {
  if (fewer_gpus_than(1)) return;
  const auto number = torch::full({}, 2.5, torch::TensorOptions(torch::kDouble).device(torch::kCUDA));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  const auto x = torch::randn({4, 4}, torch::kCUDA);
  CHECK(full_tensor(distribute_tensor(x, gpu_mesh(), {Shard(0), Shard(1)}) * number).equal(x * 2.5));
}

TEST_CASE("cuda: random numbers are those of the CPU, whatever the mesh") {
  if (fewer_gpus_than(1)) return;
  torch::manual_seed(5);
  const auto a = full_tensor(rand({9, 4}, gpu_mesh(), {Shard(0), Shard(1)}));
  torch::manual_seed(5);
  const auto b = full_tensor(rand({9, 4}, DeviceMesh(World::local(3), {3}), {Shard(0)}));
  CHECK(torch::allclose(a.cpu(), b));
}

TEST_CASE("cuda: masked embeddings equal ATen's operators on the CPU, in every dtype, width and shard") {
  if (fewer_gpus_than(1)) return;
  torch::manual_seed(0);
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    for (int64_t features : {1, 3, 8, 64, 1100}) {
      for (const auto& shard : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 9}, {20, 0}}) {
        const int64_t offset = shard.first, size = shard.second;
        // Most ids are 6: more than one thread adds up.
        for (const auto& ids :
             {torch::randint(20, {40}, torch::kLong), torch::randint(20, {3, 0}, torch::kInt),
              torch::cat({torch::full({5000}, 6, torch::kInt), torch::randint(20, {99}, torch::kInt)})}) {
          CAPTURE(dtype, features, offset, size, ids.sizes());
          std::vector<int64_t> sizes = ids.sizes().vec();
          sizes.push_back(features);
          const auto part = torch::randn({size, features}).to(dtype), grad = torch::randn(sizes).to(dtype);
          const auto on_gpu = fused_masked_embedding(part.cuda(), ids.cuda(), offset, 20);
          CHECK(on_gpu.cpu().equal(masked_embedding(part, ids, offset, 20)));
          const auto backward = [&] {
            return fused_masked_embedding_backward(grad.cuda(), ids.cuda(), offset, size, 20, /*padding_idx=*/7);
          };
          const auto gradient = backward();
          const auto expected = masked_embedding_backward(grad.to(torch::kDouble), ids, offset, size, 7, false);
          const double tolerance = dtype == torch::kDouble ? 1e-10 : dtype == torch::kFloat ? 1e-3 : 1;
          CHECK((gradient.cpu().to(torch::kDouble) - expected).abs().le(tolerance).all().item<bool>());
          CHECK(backward().equal(gradient));  // bitwise
        }
      }
    }
  }
}

TEST_CASE("cuda: cross entropy over parts of the classes equals that of the CPU, for every dtype and target") {
  if (fewer_gpus_than(1)) return;
  torch::manual_seed(0);
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    for (int64_t size : {0, 1, 7, 512, 3001}) {
      for (double smoothing : {0.0, 0.1}) {
        const ClassPart part{10, size, 4000, -100, smoothing};
        const auto logits = torch::randn({33, size}).mul(4).to(dtype), weight = torch::rand({size}).to(dtype);
        auto target = torch::randint(4000, {33}, torch::kLong);
        target[5] = -100;
        for (const auto& targets : {target, torch::rand({33, size}).to(dtype)}) {
          for (const auto& weights : {torch::Tensor(), weight}) {
            CAPTURE(dtype, size, smoothing, targets.scalar_type(), weights.defined());
            const CrossEntropyArguments on_cpu{logits, targets, weights, part};
            const CrossEntropyArguments on_gpu{logits.cuda(), targets.cuda(),
                                               weights.defined() ? weights.cuda() : weights, part};
            const double tolerance = dtype == torch::kDouble ? 1e-12 : 1e-4;
            const auto expected = cross_entropy_part(on_cpu), got = cross_entropy_part(on_gpu);
            CHECK(torch::allclose(got.cpu(), expected, tolerance, tolerance));
            CHECK(cross_entropy_part(on_gpu).equal(got));  // bitwise
            const auto grad = torch::randn({2, 33}, expected.options());
            const auto gradient = cross_entropy_part_backward(grad.cuda(), expected[0].cuda(), on_gpu);
            const double rounding = dtype == torch::kBFloat16 ? 1e-2 : dtype == torch::kHalf ? 2e-3 : tolerance;
            CHECK(torch::allclose(gradient.cpu(), cross_entropy_part_backward(grad, expected[0], on_cpu), rounding,
                                  rounding));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: bags of a rank's rows equal ATen's operators on the CPU, in every mode, dtype, width and shard") {
  if (fewer_gpus_than(1)) return;
  torch::manual_seed(0);
  // 5000 ids in one bag, most of them 6: more than one thread adds up the gradient of its row.
  const auto ids = torch::cat({torch::randint(20, {40}, torch::kInt), torch::full({5000}, 6, torch::kInt)});
  const auto offsets = torch::tensor(std::vector<int>{0, 3, 3, 40}, torch::kInt);
  for (auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16}) {
    for (int64_t features : {1, 8, 65, 1100}) {
      for (const auto& rows : {TableRows{0, 5, 20}, TableRows{5, 9, 20, 7}, TableRows{20, 0, 20}}) {
        for (int64_t mode : {kBagSum, kBagMean, kBagMax}) {
          CAPTURE(dtype, features, rows.offset, mode);
          const auto part = torch::randn({rows.size, features}).to(dtype), grad = torch::randn({4, features}).to(dtype);
          const auto weights = mode == kBagSum ? torch::rand({ids.numel()}).to(dtype) : torch::Tensor();
          const auto doubled = weights.defined() ? weights.to(torch::kDouble) : weights;
          const auto on_gpu = weights.defined() ? weights.cuda() : weights;
          const auto close = [&](const torch::Tensor& a, const torch::Tensor& b) {
            // Of the largest value: sums of 5000 numbers in float32 are rounded 5000 times.
            const double tolerance = dtype == torch::kDouble ? 1e-12 : dtype == torch::kFloat ? 3e-4 : 1e-2;
            const double scale = b.numel() == 0 ? 0 : b.nan_to_num(0, 0, 0).abs().max().item<double>();
            const auto cpu = a.cpu().to(torch::kDouble);
            return (cpu - b).abs().le(tolerance * (1 + scale)).logical_or(cpu.eq(b)).all().item<bool>();
          };
          const auto expected = masked_embedding_bag(part.to(torch::kDouble), {ids, offsets, doubled, mode}, rows);
          const auto r = fused_masked_embedding_bag(part.cuda(), {ids.cuda(), offsets.cuda(), on_gpu, mode}, rows);
          CHECK(close(r.result, expected.result));
          CHECK(r.bag_of_id.cpu().equal(expected.bag_of_id));
          CHECK(r.bag_size.cpu().equal(expected.bag_size));
          CHECK(r.max_ids.cpu().equal(expected.max_ids));
          const auto backward = [&] {
            return fused_masked_embedding_bag_backward(
                grad.cuda(), {ids.cuda(), r.bag_of_id, on_gpu, r.bag_size, r.max_ids, mode}, rows);
          };
          const auto gradient = backward();
          CHECK(close(gradient,
                      masked_embedding_bag_backward(
                          grad.to(torch::kDouble),
                          {ids, expected.bag_of_id, doubled, expected.bag_size, expected.max_ids, mode}, rows)));
          CHECK(backward().equal(gradient));  // bitwise
          CHECK(close(
              fused_masked_embedding_bag_weights_backward(grad.cuda(), part.cuda(), ids.cuda(), r.bag_of_id, rows),
              masked_embedding_bag_weights_backward(grad.to(torch::kDouble), part.to(torch::kDouble), ids,
                                                    expected.bag_of_id, rows)));
        }
      }
    }
  }
}

}  // namespace dtensor
