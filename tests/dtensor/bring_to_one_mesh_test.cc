// 0-dim tensors from several meshes, such as the norm of a pipeline's gradients.
#include <torch/nn.h>

#include <limits>
#include <memory>
#include <vector>

#include "dtensor/dtensor.h"
#include "observe/comm_debug_mode.h"
#include "tests/dtensor/leaf_cases.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

}  // namespace

TEST_CASE("several meshes: clip_grad_norm_ over the stages of a pipeline") {
  const World world = World::local(4);
  const DeviceMesh first(world, {2}, {"tp"}, {0, 1}), second(world, {2}, {"tp"}, {2, 3});
  for (const double norm_type : {2., 1., std::numeric_limits<double>::infinity()}) {
    CAPTURE(norm_type);
    std::vector<Tensor> plain, split;
    for (int i = 0; i < 6; ++i) {
      const Tensor t = torch::arange(12, torch::kDouble).view({4, 3}).add(i).cos();
      plain.push_back(torch::zeros_like(t).requires_grad_());
      plain.back().mutable_grad() = t.clone();
      split.push_back(leaf(torch::zeros_like(t), i < 3 ? first : second, {Shard(0)}));
      split.back().mutable_grad() = distribute_tensor(t, i < 3 ? first : second, {Shard(0)});
    }
    CommDebugMode comm;
    const double norm = torch::nn::utils::clip_grad_norm_(split, 0.7, norm_type);
    CAPTURE(comm.to_string());
    CHECK(comm.total() <= 6);
    CHECK(norm == Approx(torch::nn::utils::clip_grad_norm_(plain, 0.7, norm_type)));
    for (size_t i = 0; i < plain.size(); ++i) {
      CHECK(DTensor(split[i].grad()).placements() == Placements{Shard(0)});
      CHECK(same(split[i].grad(), plain[i].grad()));
    }
  }
}

TEST_CASE("several meshes: a loss summed over meshes is differentiable") {
  const World world = World::local(4);
  const DeviceMesh first(world, {2}, {"tp"}, {0, 1}), all(world, {4}, {"tp"});
  const Tensor x0 = torch::arange(8, torch::kDouble).cos();
  const Tensor x = leaf(x0, first, {Shard(0)}), y = leaf(x0, all, {Shard(0)});
  const Tensor loss = x.pow(2).sum() * 3 + y.sum() * x.sum();
  CHECK(DTensor(loss).mesh() == all);
  loss.backward();
  const Tensor xp = x0.clone().requires_grad_(), yp = x0.clone().requires_grad_();
  (xp.pow(2).sum() * 3 + yp.sum() * xp.sum()).backward();
  CHECK(same(x.grad(), xp.grad()));
  CHECK(same(y.grad(), yp.grad()));
}

TEST_CASE("several meshes: tensors with dims on two meshes are an error that names the ranks") {
  const World world = World::local(4);
  const DeviceMesh first(world, {2}, {"tp"}, {0, 1}), second(world, {2}, {"tp"}, {2, 3});
  const Tensor x = zeros({4}, first), y = zeros({4}, second);
  CHECK_THROWS_WITH(x + y, Catch::Contains("argument 'other' is on mesh(tp=2) of ranks [2, 3]") &&
                               Catch::Contains("argument 'self' on mesh(tp=2) of ranks [0, 1]"));
  CHECK_THROWS_WITH(x.sum() + zeros({4}, DeviceMesh(World::local(4), {4})).sum(), Catch::Contains("different worlds"));
}

namespace {

struct LivesWithWorld {
  std::shared_ptr<int> value = std::make_shared<int>(0);
};

}  // namespace

TEST_CASE("several meshes: a cached sum over meshes does not keep its world alive") {
  std::weak_ptr<int> in_world;
  {
    const World world = World::local(4);
    in_world = world.attachment<LivesWithWorld>().value;
    const Tensor x = zeros({4}, DeviceMesh(world, {2}, {"tp"}, {0, 1})),
                 y = zeros({4}, DeviceMesh(world, {2}, {"tp"}, {2, 3}));
    for (int i = 0; i < 2; ++i) CHECK((x.sum() + y.sum()).item<float>() == 0);
    CHECK_FALSE(in_world.expired());
  }
  CHECK(in_world.expired());
}

}  // namespace dtensor
