// A Partial is reduced before a product or a cast if deferring the reduction would cost more.
#include <torch/nn.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

Placements layout(const Tensor& t) { return spec_of(t)->placements(); }

DeviceMesh four_ranks(bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(4) : World::local(4), {4}, {"tp"});
}

TEST_CASE("addends are reduced before a cast to a dtype of twice the size", "[dtensor][partial_products]") {
  const DeviceMesh mesh = four_ranks(/*abstract=*/true);
  const auto product = [&](int64_t rows, c10::ScalarType dtype) {
    return ones({rows, 256}, mesh, {Shard(1)}, {.dtype = dtype})
        .mm(ones({256, 512}, mesh, {Shard(0)}, {.dtype = dtype}));
  };
  const Tensor p = product(256, torch::kBFloat16);
  REQUIRE(layout(p)[0].is_partial());
  CommDebugMode comm;
  const Tensor wide = p.to(torch::kFloat);
  CHECK(layout(wide) == Placements{Replicate()});
  p.to(torch::kFloat).square().mean(-1);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 2 * 256 * 512 * 2 * 3 / 4);
  // With few bytes the number of reductions counts, and these may be combined.
  CHECK(layout(product(1, torch::kBFloat16).sum().to(torch::kFloat))[0].is_partial());
  // With equal sizes the reduction is deferred.
  CHECK(layout(product(256, torch::kFloat).neg())[0].is_partial());
}

// x + factor * linear(h, weight), with the weight row-parallel, and the factor of one of these sizes.
void check_scaled_branch(std::vector<int64_t> factor_sizes, int64_t backward_bytes) {
  const DeviceMesh mesh = four_ranks();
  torch::manual_seed(3);
  const auto rand = [](std::vector<int64_t> sizes) { return torch::randn(sizes, torch::kDouble); };
  const Tensor x = rand({32, 48}), h = rand({32, 61}), weight = rand({48, 61}), factor = rand(factor_sizes);
  const auto step = [](const Tensor& x, const Tensor& h, const Tensor& weight, const Tensor& factor) {
    return x + factor * torch::linear(h, weight);
  };
  const Tensor w = weight.clone().requires_grad_(), f = factor.clone().requires_grad_();
  const Tensor plain = step(x, h, w, f);
  plain.square().sum().backward();

  const auto put = [&](const Tensor& t, const Placement& p) { return distribute_tensor(t, mesh, {p}); };
  const Tensor dx = put(x, Replicate()), dh = put(h, Shard(1));
  const Tensor dw = put(weight, Shard(1)).requires_grad_(), df = put(factor, Replicate()).requires_grad_();
  CommDebugMode forward;
  const Tensor y = step(dx, dh, dw, df), loss = y.square().sum();
  CHECK(forward.total() == 1);
  CommDebugMode backward;
  loss.backward();
  CHECK(backward.bytes() == backward_bytes);
  CHECK(torch::allclose(full_tensor(y), plain, 1e-12, 1e-12));
  CHECK(torch::allclose(full_tensor(dw.grad()), w.grad(), 1e-12, 1e-12));
  CHECK(torch::allclose(full_tensor(df.grad()), f.grad(), 1e-12, 1e-12));

  const torch::NoGradGuard no_grad;
  CHECK(layout(df * torch::linear(dh, dw))[0].is_partial());
}

TEST_CASE("the gradient of a smaller factor is summed before it is reduced", "[dtensor][partial_products]") {
  check_scaled_branch({48}, 2 * 48 * 8 * 3 / 4);
  check_scaled_branch({32, 1}, 2 * 32 * 8 * 3 / 4);
}

}  // namespace
}  // namespace dtensor
