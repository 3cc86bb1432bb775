// linear, matmul and attention of an unevenly sharded batch: values of plain ATen, without communication.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <ATen/ops/_transformer_encoder_layer_fwd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

constexpr int64_t kLength = 4, kFeatures = 8, kHeads = 2;

bool batch_alone(const std::vector<Placement>& p) {
  for (size_t i = 1; i < p.size(); ++i) {
    if (!p[i].is_replicate()) return false;
  }
  return p[0] == Shard(0) || p[0].is_replicate();
}
bool all_batches(const std::vector<Placement>& p) {
  for (const Placement& x : p) {
    if (x != p[0]) return false;
  }
  return p[0] == Shard(0) || p[0].is_replicate();
}

void check(const char* name, std::vector<std::vector<int64_t>> shapes, std::function<Tensors(const Tensors&)> fn,
           bool (*silent)(const std::vector<Placement>&)) {
  OpCase c{name, std::move(fn), std::move(shapes)};
  c.silent = silent;
  check_op(c, 24);
}

}  // namespace

TEST_CASE("linear and matmul of an uneven batch communicate nothing", "[ops][uneven_batch]") {
  for (const int64_t batch : {5, 3}) {
    check(
        "linear with bias", {{batch, 4, 3}, {2, 3}, {2}},
        [](const Tensors& t) { return Tensors{at::linear(t[0], t[1], t[2])}; }, batch_alone);
    check(
        "linear", {{batch, 4, 3}, {2, 3}}, [](const Tensors& t) { return Tensors{at::linear(t[0], t[1])}; },
        batch_alone);
    check(
        "batch times matrix", {{batch, 2, 2, 3}, {3, 2}},
        [](const Tensors& t) { return Tensors{at::matmul(t[0], t[1])}; }, batch_alone);
    check(
        "batch times vector", {{batch, 4, 3}, {3}}, [](const Tensors& t) { return Tensors{at::matmul(t[0], t[1])}; },
        batch_alone);
    check(
        "batch times batch", {{batch, 2, 3, 4}, {batch, 2, 4, 2}},
        [](const Tensors& t) { return Tensors{at::matmul(t[0], t[1])}; }, all_batches);
    check(
        "batch times fewer dims", {{batch, 2, 3, 4}, {2, 4, 2}},
        [](const Tensors& t) { return Tensors{at::matmul(t[0], t[1])}; }, batch_alone);
  }
}

TEST_CASE("linear and matmul in inference mode accept tensors made outside of it", "[ops][uneven_batch]") {
  const DeviceMesh mesh(World::local(4), {4});
  for (const int64_t batch : {4, 6}) {
    const at::Tensor x = at::rand({batch, kLength, kFeatures}, at::kDouble),
                     w = at::rand({kFeatures, kFeatures}, at::kDouble);
    const at::Tensor split = distribute_tensor(x, mesh, {Shard(0)}),
                     whole = distribute_tensor(w, mesh).requires_grad_();
    const c10::InferenceMode mode;
    CHECK(difference(at::linear(split, whole), at::linear(x, w)) == std::nullopt);
    CHECK(difference(at::matmul(split, whole), at::matmul(x, w)) == std::nullopt);
  }
}

TEST_CASE("attention of an uneven batch communicates nothing, forward and backward", "[ops][uneven_batch]") {
  const DeviceMesh& mesh = test_meshes()[0];
  for (const int64_t batch : {3, 5, 2}) {
    Tensors values;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             {batch, kLength, kFeatures}, {3 * kFeatures, kFeatures}, {3 * kFeatures}, {kFeatures, kFeatures}})
      values.push_back(at::rand(sizes, at::kDouble).sub(0.5));
    const auto run = [&](Tensors t) {
      for (at::Tensor& x : t) x = x.detach().requires_grad_();
      const auto qkv = at::linear(t[0], t[1], t[2]).unflatten(-1, {3, kHeads, kFeatures / kHeads}).unbind(2);
      const at::Tensor q = qkv[0].transpose(1, 2), k = qkv[1].transpose(1, 2), v = qkv[2].transpose(1, 2);
      const at::Tensor weights = at::softmax(q.matmul(k.mT()), -1);
      const at::Tensor y = at::linear(weights.matmul(v).transpose(1, 2).flatten(2), t[3]);
      (y * y).sum().backward();
      return Tensors{y, weights.mean(1), t[0].grad(), t[1].grad(), t[2].grad(), t[3].grad()};
    };
    const Tensors expected = run(values);
    Tensors on_mesh;
    for (size_t k = 0; k < values.size(); ++k)
      on_mesh.push_back(lay_out(values[k], mesh, {k == 0 ? Placement(Shard(0)) : Placement(Replicate())}));
    const CommDebugMode comm;
    const Tensors actual = run(on_mesh);
    CAPTURE(batch);
    CHECK(comm.total() == 1);  // the gradients of the parameters, together
    CHECK(comm.work_share() == Approx(1.0 * ((batch + 3) / 4) * 4 / static_cast<double>(batch)));
    for (size_t k = 0; k < expected.size(); ++k) CHECK(difference(actual[k], expected[k]) == std::nullopt);
  }
}

TEST_CASE("fused attention and encoder layers of an uneven batch communicate nothing", "[ops][uneven_batch]") {
  const c10::NoGradGuard no_grad;
  const DeviceMesh& mesh = test_meshes()[0];
  for (const int64_t batch : {3, 5, 2}) {
    Tensors values;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{batch, kLength, kFeatures},
                                                               {3 * kFeatures, kFeatures},
                                                               {3 * kFeatures},
                                                               {kFeatures, kFeatures},
                                                               {kFeatures},
                                                               {6, kFeatures},
                                                               {6},
                                                               {kFeatures, 6}})
      values.push_back(at::rand(sizes, at::kDouble).sub(0.5));
    Tensors on_mesh;
    for (size_t k = 0; k < values.size(); ++k)
      on_mesh.push_back(lay_out(values[k], mesh, {k == 0 ? Placement(Shard(0)) : Placement(Replicate())}));
    for (const bool need_weights : {true, false}) {
      for (const bool averages : {true, false}) {
        const auto run = [&](const Tensors& t) {
          auto [y, weights] = at::_native_multi_head_attention(t[0], t[0], t[0], kFeatures, kHeads, t[1], t[2], t[3],
                                                               t[4], {}, need_weights, averages);
          return need_weights ? Tensors{y, weights} : Tensors{y};
        };
        const Tensors expected = run(values);
        const CommDebugMode comm;
        const Tensors actual = run(on_mesh);
        CAPTURE(batch, need_weights, averages);
        CHECK(comm.total() == 0);
        for (size_t k = 0; k < expected.size(); ++k) CHECK(difference(actual[k], expected[k]) == std::nullopt);
      }
    }
    const auto layer = [&](const Tensors& t) {
      return at::_transformer_encoder_layer_fwd(t[0], kFeatures, kHeads, t[1], t[2], t[3], t[4], true, false, 1e-5,
                                                t[4], t[4], t[4], t[4], t[5], t[6], t[7], t[4]);
    };
    const CommDebugMode comm;
    const at::Tensor actual = layer(on_mesh);
    CHECK(comm.total() == 0);
    CHECK(difference(actual, layer(values)) == std::nullopt);
  }
}

}  // namespace dtensor::testing
