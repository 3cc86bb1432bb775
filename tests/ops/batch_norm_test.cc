// Batch and instance norm: statistics of the whole batch in every layout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_native_batch_norm_legit_no_training.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

template <typename Tuple>
Tensors tensors(const Tuple& t) {
  return std::apply([](auto&... x) { return Tensors{x...}; }, t);
}

// The fourth and fifth input are running statistics, which the call writes to; they are compared, too.
OpCase with_running(const char* name, bool training) {
  OpCase c{name,
           [training](auto& t) {
             const at::Tensor mean = t[3].clone(), var = t[4].clone();
             auto y = at::batch_norm(t[0], t[1], t[2], mean, var, training, 0.3, 1e-3, false);
             return Tensors{y, mean, var};
           },
           {{7, 4, 3}, {4}, {4}, {4}, {4}}};
  c.make = [](size_t, const auto& shape) { return at::rand(shape, at::kDouble) + 0.5; };
  c.grad = {true, true, true, false, false};
  c.partial_inputs = false;
  return c;
}

bool all_whole(const std::vector<Placement>& p, size_t from) {
  for (size_t i = from; i < p.size(); ++i) {
    if (p[i] != Replicate()) return false;
  }
  return true;
}

TEST_CASE("batch norm in training uses the statistics of the whole batch", "[ops][batch_norm]") {
  OpCase c = with_running("with running statistics", true);
  c.silent = [](const std::vector<Placement>& p) {
    if (p[0] == Shard(1)) return p[3] == Shard(0) && p[4] == Shard(0);  // of replicated inputs every rank has all
    return p[0] == Replicate() && all_whole(p, 1);
  };
  check_op(c, 30);
  c.name = "uneven, some empty";
  c.shapes[0] = {5, 4, 2, 3};
  c.silent = {};
  check_op(c, 30);
  OpCase plain{"without running statistics",
               [](auto& t) { return Tensors{at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0, 1e-3, false)}; },
               {{6, 5, 3}, {5}, {5}}};
  check_op(plain);
  plain.name = "without weights";
  plain.fn = [](auto& t) { return Tensors{at::batch_norm(t[0], {}, {}, {}, {}, true, 0, 1e-3, false)}; };
  plain.shapes = {{26, 2}};
  check_op(plain);
  plain.name = "frozen weights";
  plain.fn = [](auto& t) { return Tensors{at::batch_norm(t[0], t[1], t[2], {}, {}, true, 0, 1e-3, false)}; };
  plain.shapes = {{6, 5, 3}, {5}, {5}};
  plain.grad = {true, false, false};
  check_op(plain, 20);
}

TEST_CASE("batch norm with given statistics is elementwise", "[ops][batch_norm]") {
  OpCase c = with_running("evaluation", false);
  c.silent = [](const std::vector<Placement>& p) { return all_whole(p, 1); };
  check_op(c, 30);
}

TEST_CASE("every form of batch norm", "[ops][batch_norm]") {
  const auto check = [](const char* name, auto fn) {
    OpCase c = with_running(name, true);
    c.fn = fn;
    c.grad = {false, false, false, false, false};
    c.shapes[0] = {5, 4, 3};
    check_op(c, 20);
  };
  check("native_batch_norm", [](auto& t) {
    return tensors(at::native_batch_norm(t[0], t[1], t[2], t[3].clone(), t[4].clone(), true, 0.1, 1e-3));
  });
  check("native_batch_norm, evaluation",
        [](auto& t) { return tensors(at::native_batch_norm(t[0], t[1], t[2], t[3], t[4], false, 0.1, 1e-3)); });
  check("_native_batch_norm_legit", [](auto& t) {
    at::Tensor mean = t[3].clone(), var = t[4].clone();
    Tensors result = tensors(at::_native_batch_norm_legit(t[0], t[1], t[2], mean, var, true, 0.1, 1e-3));
    result.push_back(mean), result.push_back(var);
    return result;
  });
  check("_native_batch_norm_legit.no_stats",
        [](auto& t) { return tensors(at::_native_batch_norm_legit(t[0], t[1], t[2], true, 0.1, 1e-3)); });
  check("_native_batch_norm_legit_functional", [](auto& t) {
    return call_op("aten::_native_batch_norm_legit_functional", {t[0], t[1], t[2], t[3], t[4], true, 0.1, 1e-3});
  });
  check("_native_batch_norm_legit_no_training", [](auto& t) {
    return tensors(at::_native_batch_norm_legit_no_training(t[0], t[1], t[2], t[3], t[4], 0.1, 1e-3));
  });
  check("_batch_norm_with_update", [](auto& t) {
    at::Tensor mean = t[3].clone(), var = t[4].clone();
    Tensors result = call_op("aten::_batch_norm_with_update", {t[0], t[1], t[2], mean, var, 0.1, 1e-3});
    result.push_back(mean), result.push_back(var);
    return result;
  });
  check("_batch_norm_with_update_functional", [](auto& t) {
    return call_op("aten::_batch_norm_with_update_functional", {t[0], t[1], t[2], t[3], t[4], 0.1, 1e-3});
  });
  check("_batch_norm_no_update", [](auto& t) {
    return call_op("aten::_batch_norm_no_update", {t[0], t[1], t[2], t[3], t[4], 0.1, 1e-3});
  });
  check("native_batch_norm_backward", [](auto& t) {
    return tensors(
        at::native_batch_norm_backward(t[0], t[0] * t[0], t[1], {}, {}, t[3], t[4], true, 1e-3, {true, true, true}));
  });
  check("native_batch_norm_backward, one gradient", [](auto& t) {
    return tensors(
        at::native_batch_norm_backward(t[0], t[0] * t[0], t[1], t[3], t[4], {}, {}, false, 1e-3, {false, true, false}));
  });
}

// There are no CPU kernels for these: they are composed of the others.
TEST_CASE("the batch norms of cuDNN and MIOpen", "[ops][batch_norm]") {
  for (const auto& mesh : test_meshes()) {
    const auto x = at::rand({7, 4, 3}, at::kDouble), w = at::rand({4}, at::kDouble),
               g = at::rand({7, 4, 3}, at::kDouble);
    const auto [y, mean, invstd] = at::native_batch_norm(x, w, w, {}, {}, true, 0.1, 1e-3);
    const auto grads =
        tensors(at::native_batch_norm_backward(g, x, w, {}, {}, mean, invstd, true, 1e-3, {true, true, true}));
    const Placements rows(mesh.ndim(), Shard(0)), whole(mesh.ndim(), Replicate());
    const auto dx = distribute_tensor(x, mesh, rows), dw = distribute_tensor(w, mesh, whole),
               dg = distribute_tensor(g, mesh, rows);
    for (const std::string name : {"cudnn", "miopen"}) {
      const c10::IValue none;
      auto out = call_op("aten::" + name + "_batch_norm", {dx, dw, dw, none, none, true, 0.1, 1e-3});
      CHECK(full_tensor(out[0]).allclose(y));
      CHECK(full_tensor(out[2]).allclose(invstd));
      std::vector<c10::IValue> args = {dx, dg, dw, none, none, out[1], out[2], 1e-3};
      if (name == "cudnn") args.emplace_back(out.at(3));
      const auto back = call_op("aten::" + name + "_batch_norm_backward", args);
      for (size_t k = 0; k < 3; ++k) CHECK(full_tensor(back[k]).allclose(grads[k]));
    }
  }
}

TEST_CASE("batch norm exchanges two numbers per channel and rank in forward and in backward", "[ops][batch_norm]") {
  const auto& mesh = test_meshes()[0];
  auto x = distribute_tensor(at::rand({64, 3, 5}, at::kDouble), mesh, {Shard(0)}).requires_grad_();
  const auto w = distribute_tensor(at::rand({3}, at::kDouble), mesh, {Replicate()});
  CommDebugMode comm;
  const auto y = at::batch_norm(x, w, w, {}, {}, true, 0.1, 1e-3, false);
  CHECK(comm.total() == comm.count("all_gather"));
  CHECK(comm.total() <= 2);
  CommDebugMode back;
  y.sum().backward();
  CHECK(back.count("all_reduce") == back.total());
  CHECK(back.total() == 1);
}

TEST_CASE("batch norm: running statistics keep their layout, their increments move", "[ops][batch_norm]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  const Placement cut = Shard(0), sum = Partial();
  const auto ones = [&](const Placements& p) { return distribute_tensor(at::ones({8}, at::kDouble), mesh, p); };
  const at::Tensor x = distribute_tensor(at::rand({5, 8, 5}, at::kDouble), mesh, {Shard(1), Shard(1)});
  const at::Tensor mean = ones({cut, sum}), var = ones({cut, sum}), weight = ones({cut, cut}), bias = ones({cut, cut});
  CommDebugMode comm;
  at::native_batch_norm(x, weight, bias, mean, var, /*training=*/true, 0.1, 1e-5);
  CHECK(comm.total() == comm.count("all_gather"));
  CHECK(comm.total() == 2);  // the new mean, and the new variance
}

TEST_CASE("batch norm: errors are thrown on all ranks and nothing changes", "[ops][batch_norm]") {
  const auto& mesh = test_meshes()[0];
  const auto x = distribute_tensor(at::rand({8, 4, 3}), mesh, {Shard(0)});
  const auto stats = distribute_tensor(at::zeros({4}), mesh, {Replicate()});
  const auto wrong = distribute_tensor(at::rand({3}), mesh, {Replicate()});
  CHECK_THROWS_WITH(at::batch_norm(x, wrong, {}, stats, stats, true, 0.1, 1e-3, false),
                    Catch::Contains("weight should contain 4 elements"));
  CHECK_THROWS_WITH(at::batch_norm(x, {}, {}, stats, at::zeros({4}), true, 0.1, 1e-3, false),
                    Catch::Contains("'running_var' is a plain tensor"));
  CHECK(full_tensor(stats).abs().sum().item<double>() == 0);
}

TEST_CASE("instance norm keeps batch and channels split", "[ops][batch_norm]") {
  OpCase c{"instance_norm",
           [](auto& t) { return Tensors{at::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-3, false)}; },
           {{5, 8, 3, 2}, {8}, {8}}};
  c.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(0) && all_whole(p, 1); };
  check_op(c, 40);
  c = with_running("with running statistics", true);
  c.fn = [](auto& t) {
    const at::Tensor mean = t[3].clone(), var = t[4].clone();
    auto y = at::instance_norm(t[0], t[1], t[2], mean, var, true, 0.3, 1e-3, false);
    return Tensors{y, mean, var};
  };
  c.shapes[0] = {5, 4, 3};
  check_op(c, 30);
  c.name = "given statistics";
  c.fn = [](auto& t) { return Tensors{at::instance_norm(t[0], t[1], t[2], t[3], t[4], false, 0.3, 1e-3, false)}; };
  check_op(c, 30);
}

}  // namespace
}  // namespace dtensor::testing
