#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/l1_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/nll_loss2d.h>
#include <ATen/ops/nll_loss_nd.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/soft_margin_loss.h>
#include <ATen/ops/zeros.h>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

namespace {

constexpr int64_t kLossReductions[] = {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum};

at::Tensor probabilities(const std::vector<int64_t>& shape) { return at::rand(shape, at::kDouble).mul(0.9).add(0.05); }

// Scores, class indices some of which are ignored, class weights.
at::Tensor make_nll(size_t i, const std::vector<int64_t>& shape) {
  if (i == 1) return at::randint(4, shape, at::kLong);
  return probabilities(shape);
}

std::string name(const char* loss, int64_t reduction) {
  return std::string(loss) + ", reduction " + std::to_string(reduction);
}

}  // namespace

TEST_CASE("elementwise losses match ATen in every layout, means on uneven and empty shards too") {
  using Fn = at::Tensor (*)(const Tensors&, int64_t);
  const std::vector<std::pair<const char*, Fn>> losses = {
      {"mse_loss", [](const Tensors& t, int64_t r) { return at::mse_loss(t[0], t[1], r); }},
      {"l1_loss", [](const Tensors& t, int64_t r) { return at::l1_loss(t[0], t[1], r); }},
      {"smooth_l1_loss", [](const Tensors& t, int64_t r) { return at::smooth_l1_loss(t[0], t[1], r, 0.3); }},
      {"huber_loss", [](const Tensors& t, int64_t r) { return at::huber_loss(t[0], t[1], r, 0.3); }},
      {"soft_margin_loss", [](const Tensors& t, int64_t r) { return at::soft_margin_loss(t[0], t[1], r); }},
      {"kl_div", [](const Tensors& t, int64_t r) { return at::kl_div(t[0], t[1], r); }},
      {"binary_cross_entropy", [](const Tensors& t, int64_t r) { return at::binary_cross_entropy(t[0], t[1], {}, r); }},
      {"binary_cross_entropy_with_logits",
       [](const Tensors& t, int64_t r) { return at::binary_cross_entropy_with_logits(t[0], t[1], {}, {}, r); }},
  };
  for (const auto& [loss, fn] : losses) {
    for (int64_t reduction : kLossReductions) {
      OpCase c{
          name(loss, reduction), [fn = fn, reduction](auto& t) { return Tensors{fn(t, reduction)}; }, {{5, 3}, {5, 3}}};
      c.make = [](size_t, const auto& shape) { return probabilities(shape); };
      c.grad = {true, false};
      c.partial_inputs = std::string(loss) != "binary_cross_entropy";  // whose local forms check for [0, 1]
      c.silent = [](const std::vector<Placement>& p) {
        return !p[0].is_partial() && !p[1].is_partial() && (p[0] == p[1] || p[0] == Replicate() || p[1] == Replicate());
      };
      DYNAMIC_SECTION(c.name) { check_op(c); }
    }
  }
}

TEST_CASE("elementwise losses with weights and with broadcasting") {
  for (int64_t reduction : kLossReductions) {
    OpCase bce{name("binary_cross_entropy", reduction),
               [=](auto& t) { return Tensors{at::binary_cross_entropy(t[0], t[1], t[2], reduction)}; },
               {{5, 3}, {5, 3}, {3}}};
    bce.make = [](size_t, const auto& shape) { return probabilities(shape); };
    bce.grad = {true, false, false};
    bce.partial_inputs = false;
    check_op(bce);
    OpCase logits = bce;
    logits.fn = [=](auto& t) {
      return Tensors{at::binary_cross_entropy_with_logits(t[0], t[1], t[2], t[2], reduction)};
    };
    check_op(logits);
    check_op({name("mse_loss", reduction),
              [=](auto& t) { return Tensors{at::mse_loss(t[0], t[1], reduction)}; },
              {{5, 3}, {3}}});
    check_op({name("huber_loss", reduction),
              [=](auto& t) { return Tensors{at::huber_loss(t[0], t[1], reduction)}; },
              {{3}, {5, 3}}});
  }
}

TEST_CASE("negative log likelihood matches ATen in every layout") {
  for (int64_t reduction : kLossReductions) {
    OpCase c{name("nll_loss", reduction),
             [=](auto& t) { return Tensors{at::nll_loss(t[0], t[1], {}, reduction, 2)}; },
             {{5, 4}, {5}},
             make_nll};
    check_op(c);
    check_op({name("nll_loss, weights", reduction),
              [=](auto& t) { return Tensors{at::nll_loss(t[0], t[1], t[2], reduction, 2)}; },
              {{5, 4}, {5}, {4}},
              make_nll,
              {true, false, false}});
    check_op({name("nll_loss of one row", reduction),
              [=](auto& t) { return Tensors{at::nll_loss(t[0], t[1], {}, reduction)}; },
              {{4}, {}},
              make_nll});
    check_op({name("nll_loss2d", reduction),
              [=](auto& t) { return Tensors{at::nll_loss2d(t[0], t[1], t[2], reduction, 2)}; },
              {{3, 4, 5, 2}, {3, 5, 2}, {4}},
              make_nll,
              {true, false, false}});
    check_op({name("nll_loss_nd of 3 dims", reduction),
              [=](auto& t) { return Tensors{at::nll_loss_nd(t[0], t[1], {}, reduction)}; },
              {{5, 4, 3}, {5, 3}},
              make_nll});
  }
  check_op(
      {"all targets ignored",
       [](auto& t) { return Tensors{at::nll_loss(t[0], t[1], {}, at::Reduction::Mean, 0)}; },
       {{5, 4}, {5}},
       [](size_t i, const auto& shape) { return i == 1 ? at::randint(1, shape, at::kLong) : probabilities(shape); }});
}

TEST_CASE("the mean of a batch-sharded likelihood costs one all-reduce of two numbers, its gradient none") {
  const DeviceMesh& mesh = test_meshes()[0];
  at::Tensor scores = lay_out(probabilities({9, 4}), mesh, {Shard(0)}).requires_grad_();
  const auto target = lay_out(at::randint(4, {9}, at::kLong), mesh, {Shard(0)});
  CommDebugMode comm;
  const auto loss = at::nll_loss(scores, target);
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_reduce", 1}});
  CHECK(comm.bytes() == 2 * 16 * 3 / 4);
  CHECK(meta_for_read(loss).spec->placements() == Placements{Replicate()});
  loss.backward();
  CHECK(comm.total() == 1);
  CHECK(meta_for_read(scores.grad()).spec->placements() == Placements{Shard(0)});
  // Sums stay Partial until they are read.
  CommDebugMode summing;
  const auto sum = at::nll_loss(scores.detach(), target, {}, at::Reduction::Sum);
  CHECK(summing.total() == 0);
  CHECK(meta_for_read(sum).spec->placements() == Placements{Partial()});
}

TEST_CASE("the mean of a likelihood in half precision does not overflow") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto scores = at::full({10001, 2}, -20.0, at::kHalf);
  const auto target = at::randint(2, {10001}, at::kLong);
  for (int64_t ignored : {-100, 1}) {
    const auto loss = at::nll_loss(lay_out(scores, mesh, {Shard(0)}), lay_out(target, mesh, {Shard(0)}), {},
                                   at::Reduction::Mean, ignored);
    CHECK(full_tensor(loss).item<double>() == Approx(20).epsilon(2e-3));  // the ranks' means are half precision
  }
  const auto few = lay_out(scores.narrow(0, 0, 2), mesh, {Shard(0)}),
             rows = lay_out(target.narrow(0, 0, 2), mesh, {Shard(0)});
  CHECK(full_tensor(at::nll_loss(few, rows)).item<double>() == 20.0);  // ranks without rows
}

TEST_CASE("cross entropy matches ATen in every layout") {
  for (int64_t reduction : kLossReductions) {
    for (double smoothing : {0.0, 0.1}) {
      OpCase c{name("cross_entropy_loss", reduction),
               [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, reduction, -100, smoothing)}; },
               {{5, 4}, {5}},
               make_nll};
      check_op(c);
      c.name += ", ignored targets";
      c.fn = [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, reduction, 2, smoothing)}; };
      check_op(c);
      c.name += ", weights";
      c.shapes = {{5, 4}, {5}, {4}};
      c.grad = {true, false, false};
      c.fn = [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], t[2], reduction, 2, smoothing)}; };
      check_op(c);
      OpCase p{name("probabilities", reduction),
               [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], t[2], reduction, -100, smoothing)}; },
               {{5, 4}, {5, 4}, {4}}};
      p.grad = {true, false, false};
      check_op(p);
    }
    check_op({name("cross_entropy_loss of 4 dims", reduction),
              [=](auto& t) { return Tensors{at::cross_entropy_loss(t[0], t[1], {}, reduction)}; },
              {{3, 4, 5, 2}, {3, 5, 2}},
              make_nll});
  }
}

TEST_CASE("an error of targets in two dims has the sizes of the whole tensors") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto scores = distribute_tensor(at::rand({8, 6, 4, 4}), mesh, {Shard(0)});
  const auto target = distribute_tensor(at::zeros({8, 4, 5}, at::kLong), mesh, {Shard(0)});
  CHECK_THROWS_WITH(at::nll_loss2d(scores, target), Catch::Contains("[8, 4, 4]") && Catch::Contains("[8, 4, 5]"));
}

TEST_CASE("losses in an abstract world") {
  const DeviceMesh mesh(World::abstract(4), {4});
  const auto meta = [&](std::vector<int64_t> sizes, c10::ScalarType dtype) {
    return distribute_tensor(at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta)), mesh, {Shard(0)});
  };
  at::Tensor scores = meta({9, 4}, at::kFloat).detach().requires_grad_();
  const auto target = meta({9}, at::kLong);
  CommDebugMode comm;
  at::cross_entropy_loss(scores, target).backward();
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_reduce", 1}});
  CHECK(comm.bytes() == 2 * 8 * 3 / 4);
  CHECK(meta_for_read(scores.grad()).spec->placements() == Placements{Shard(0)});
}
