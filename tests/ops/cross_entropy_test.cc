// cross_entropy_loss() of logits whose classes are split over ranks: values, communication, memory, derivatives.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

namespace {

constexpr int64_t kReductions[] = {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum};
constexpr int64_t kClasses = 51;  // long enough for summaries on six ranks, and uneven

std::string name(const char* what, int64_t reduction, double smoothing) {
  return std::string(what) + ", reduction " + std::to_string(reduction) + ", smoothing " + std::to_string(smoothing);
}

// Logits, class indices, class weights.
at::Tensor make_input(size_t i, const std::vector<int64_t>& shape) {
  if (i == 1) return at::randint(kClasses, shape, at::kLong);
  return i == 0 ? at::randn(shape, at::kDouble).mul(3) : at::rand(shape, at::kDouble).add(0.1);
}

}  // namespace

TEST_CASE("cross entropy of split classes matches ATen in every layout") {
  for (int64_t reduction : kReductions) {
    for (double smoothing : {0.0, 0.1}) {
      OpCase c{name("class indices", reduction, smoothing),
               [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, reduction, 2, smoothing)}; },
               {{5, kClasses}, {5}},
               make_input};
      c.tolerance = 1e-12;
      check_op(c, /*max_2d=*/40);
      c.name = name("class indices and weights", reduction, smoothing);
      c.shapes = {{5, kClasses}, {5}, {kClasses}};
      c.grad = {true, false, false};
      c.fn = [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], t[2], reduction, 2, smoothing)}; };
      check_op(c, /*max_2d=*/40);
      c.name = name("one row", reduction, smoothing);
      c.shapes = {{kClasses}, {}, {kClasses}};
      check_op(c, /*max_2d=*/40);
      OpCase p{name("probabilities and weights", reduction, smoothing),
               [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], t[2], reduction, -100, smoothing)}; },
               {{5, kClasses}, {5, kClasses}, {kClasses}}};
      p.grad = {true, false, false};
      p.tolerance = 1e-11;  // sums of 51 terms of either sign
      check_op(p, /*max_2d=*/40);
    }
  }
}

TEST_CASE("cross entropy of classes in uneven shards, one of them empty, matches ATen") {
  const DeviceMesh mesh(World::local(6), {6}, {"tp"});
  const at::Tensor target = at::randint(13, {4}, at::kLong);
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor logits = at::randn({4, 13}, dtype);  // ranks have 3, 3, 3, 3, 1 and no classes
    const at::Tensor loss =
        at::cross_entropy_loss(lay_out(logits, mesh, {Shard(1)}), lay_out(target, mesh, {Replicate()}));
    CHECK(difference(loss, at::cross_entropy_loss(logits, target), dtype == at::kDouble ? 1e-12 : 1e-5).value_or("") ==
          "");
  }
}

TEST_CASE("logits that are split by classes do not move: one exchange in forward, none in backward") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor plain = at::randn({64, 4096}, at::kDouble), target = at::randint(4096, {64}, at::kLong);
  for (int64_t reduction : kReductions) {
    for (double smoothing : {0.0, 0.1}) {
      CAPTURE(reduction, smoothing);
      at::Tensor logits = lay_out(plain, mesh, {Shard(1)}).requires_grad_();
      const at::Tensor classes = lay_out(target, mesh, {Replicate()});
      CommDebugMode comm;
      const at::Tensor loss = at::cross_entropy_loss(logits, classes, {}, reduction, -100, smoothing);
      CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_gather", 1}});
      CHECK(comm.bytes() == 3 * 64 * (8 + 8 + 8));  // largest logit, sum of exponentials, the target's logit
      CHECK(comm.rows()[0].op == "aten::cross_entropy_loss");
      CHECK(spec_of(loss)->placements() == Placements{Replicate()});
      (reduction == at::Reduction::None ? loss.sum() : loss).backward();
      CHECK(comm.total() == 1);
      CHECK(spec_of(logits.grad())->placements() == Placements{Shard(1)});
    }
  }
}

TEST_CASE("classes split by two mesh dims, or by one of two, take one exchange and the mean of the rows") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  const at::Tensor plain = at::randn({7, 100}, at::kDouble), target = at::randint(100, {7}, at::kLong);
  const at::Tensor expected = at::cross_entropy_loss(plain, target);
  for (const Placements& placements :
       {Placements{Shard(1), Shard(1)}, Placements{Replicate(), Shard(1)}, Placements{Shard(0), Shard(1)}}) {
    CAPTURE(to_string(placements));
    const bool splits_rows = placements[0] == Shard(0);
    at::Tensor logits = lay_out(plain, mesh, placements).requires_grad_();
    const at::Tensor classes = lay_out(target, mesh, {splits_rows ? Shard(0) : Replicate(), Replicate()});
    CommDebugMode comm;
    const at::Tensor loss = at::cross_entropy_loss(logits, classes);
    CHECK(comm.total() == (splits_rows ? 2 : 1));
    loss.backward();
    CHECK(comm.total() == (splits_rows ? 2 : 1));
    CHECK(difference(loss, expected, 1e-12).value_or("") == "");
    CHECK(spec_of(logits.grad())->placements() == placements);
  }
}

TEST_CASE("cross entropy of split classes makes no tensor of the logits' size besides the gradient") {
  const DeviceMesh& mesh = test_meshes()[0];
  const int64_t part_bytes = 64 * 2048 * 8;
  at::Tensor logits = lay_out(at::randn({64, 8192}, at::kDouble), mesh, {Shard(1)}).requires_grad_();
  const at::Tensor target = lay_out(at::randint(8192, {64}, at::kLong), mesh, {Replicate()});
  MemoryMeter& meter = mesh.world().memory();
  const int64_t before = meter.live_bytes();
  meter.reset_peak();
  const at::Tensor loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::Mean, -100, 0.1);
  CHECK(meter.peak_bytes() - before <= part_bytes / 50);
  const at::Tensor gradient = torch::autograd::grad({loss}, {logits})[0];
  CHECK(meter.peak_bytes() - before <= part_bytes + part_bytes / 50);
  CHECK(spec_of(gradient)->max_local_bytes() == part_bytes);
}

TEST_CASE("cross entropy of split classes has second derivatives") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor plain = at::randn({5, kClasses}, at::kDouble), direction = at::randn({5, kClasses}, at::kDouble);
  at::Tensor target = at::randint(kClasses, {5}, at::kLong);
  target[1] = -100;
  for (int64_t reduction : kReductions) {
    const auto second = [&](const at::Tensor& given, const at::Tensor& classes, const at::Tensor& along) {
      const at::Tensor logits = given.detach().requires_grad_();
      const at::Tensor loss = at::cross_entropy_loss(logits, classes, {}, reduction, -100, 0.1);
      const at::Tensor scalar = reduction == at::Reduction::None ? loss.square().sum() : loss;
      const at::Tensor first = torch::autograd::grad({scalar}, {logits}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({(first * along).sum()}, {logits})[0];
    };
    CAPTURE(reduction);
    const at::Tensor actual = second(lay_out(plain, mesh, {Shard(1)}), lay_out(target, mesh, {Replicate()}),
                                     lay_out(direction, mesh, {Shard(1)}));
    CHECK(difference(actual, second(plain, target, direction), 1e-10).value_or("") == "");
  }
}

TEST_CASE("half types are computed in float, and their loss has their dtype") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor target = at::randint(512, {6}, at::kLong);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor plain = at::randn({6, 512}).mul(4).to(dtype);
    const at::Tensor loss =
        at::cross_entropy_loss(lay_out(plain, mesh, {Shard(1)}), lay_out(target, mesh, {Replicate()}));
    CHECK(loss.scalar_type() == dtype);
    const double expected = at::cross_entropy_loss(plain.to(at::kFloat), target).item<double>();
    CHECK(full_tensor(loss).item<double>() == Approx(expected).epsilon(dtype == at::kHalf ? 1e-3 : 8e-3));
  }
}

TEST_CASE("the mean over targets that are all ignored is nan, and its gradient is 0") {
  const DeviceMesh& mesh = test_meshes()[0];
  at::Tensor logits = lay_out(at::randn({3, 64}, at::kDouble), mesh, {Shard(1)}).requires_grad_();
  const at::Tensor loss = at::cross_entropy_loss(logits, lay_out(at::full({3}, -100, at::kLong), mesh, {Replicate()}));
  CHECK(std::isnan(full_tensor(loss).item<double>()));
  for (const bool create_graph : {false, true}) {
    const at::Tensor gradient = torch::autograd::grad({loss}, {logits}, {}, /*retain_graph=*/true, create_graph)[0];
    CHECK(full_tensor(gradient).eq(0).all().item<bool>());
  }
}

TEST_CASE("probabilities and weights that need a gradient get one") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor logits = at::randn({4, 64}, at::kDouble), given = at::rand({4, 64}, at::kDouble);
  const auto gradient = [](const at::Tensor& x, const at::Tensor& p) {
    const at::Tensor target = p.detach().requires_grad_();
    at::cross_entropy_loss(x, target).backward();
    return target.grad();
  };
  const at::Tensor actual = gradient(lay_out(logits, mesh, {Shard(1)}), lay_out(given, mesh, {Shard(1)}));
  CHECK(difference(actual, gradient(logits, given)).value_or("") == "");
}

TEST_CASE("cross entropy of split classes in an abstract world") {
  const DeviceMesh mesh(World::abstract(4), {4});
  const auto meta = [&](std::vector<int64_t> sizes, c10::ScalarType dtype, const Placement& p) {
    return distribute_tensor(at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta)), mesh, {p});
  };
  at::Tensor logits = meta({9, 4000}, at::kFloat, Shard(1)).detach().requires_grad_();
  const at::Tensor target = meta({9}, at::kLong, Replicate());
  CommDebugMode comm;
  at::cross_entropy_loss(logits, target).backward();
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_gather", 1}});
  CHECK(spec_of(logits.grad())->placements() == Placements{Shard(1)});
}
