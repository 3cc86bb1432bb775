// Convolutions split by batch, input channels, output channels and groups: the values of plain ATen, forward and
// backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_convolution.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/conv_tbc.h>
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

// A list of numbers, since ATen would take a string for the name of a padding.
std::vector<int64_t> list(std::initializer_list<int64_t> values) { return values; }

const auto kWhole = [](const Placement& p) { return p == Replicate(); };

// Batch split, or output channels, or input channels of both input and weight.
bool is_silent(const std::vector<Placement>& p) {
  const bool bias_fits = p.size() < 3 || kWhole(p[2]);
  if (p[0] == Shard(0)) return kWhole(p[1]) && bias_fits;
  if (kWhole(p[0])) return (kWhole(p[1]) || p[1] == Shard(0)) && bias_fits;
  return p[0] == Shard(1) && p[1] == Shard(1) && bias_fits;
}

TEST_CASE("convolutions match ATen in every layout", "[ops][convolution]") {
  OpCase c{"conv2d",
           [](auto& t) {
             return Tensors{at::conv2d(t[0], t[1], t[2], list({2, 1}), list({1, 0}), list({1, 2}))};
           },
           {{5, 3, 6, 7}, {6, 3, 3, 2}, {6}}};
  c.silent = is_silent;
  check_op(c, 20);
  c = {"conv1d", [](auto& t) { return Tensors{at::conv1d(t[0], t[1])}; }, {{5, 6, 4}, {3, 6, 2}}};
  c.silent = is_silent;
  check_op(c);
  check_op({"conv3d",
            [](auto& t) { return Tensors{at::conv3d(t[0], t[1], t[2])}; },
            {{3, 2, 3, 4, 2}, {5, 2, 2, 2, 1}, {5}}},
           20);
  check_op(
      {"unbatched", [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2])}; }, {{3, 5, 4}, {2, 3, 2, 2}, {2}}});
  check_op({"same size",
            [](auto& t) {
              return Tensors{at::conv2d(t[0], t[1], {}, list({1, 1}), "same")};
            },
            {{2, 3, 5, 4}, {4, 3, 3, 2}}});
  c = {"frozen weight",
       [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2])}; },
       {{5, 3, 4, 4}, {6, 3, 2, 2}, {6}}};
  c.grad = {true, false, true};
  check_op(c, 20);
  c.name = "first layer", c.grad = {false, true, false};
  check_op(c, 20);
  c.name = "empty batch", c.grad = {}, c.shapes[0][0] = 0;
  check_op(c, 20);
  c.name = "one image", c.shapes[0][0] = 1;
  check_op(c, 20);
}

TEST_CASE("convolutions of int32: a rank without channels adds nothing", "[ops][convolution]") {
  const DeviceMesh mesh(World::local(2), {2});
  const at::Tensor x = at::zeros({1, 1}, at::kInt) - 3, w = at::zeros({1, 1, 1}, at::kInt) - 3;
  const auto y =
      at::conv1d(distribute_tensor(x, mesh, {Replicate()}), distribute_tensor(w, mesh, {Shard(1)}), {}, 1, 1);
  CHECK(at::equal(full_tensor(y), at::conv1d(x, w, {}, 1, 1)));
}

TEST_CASE("transposed convolutions match ATen in every layout", "[ops][convolution]") {
  OpCase c{"conv_transpose2d",
           [](auto& t) {
             return Tensors{at::conv_transpose2d(t[0], t[1], t[2], {2, 1}, {1, 0}, {1, 0}, 1, {1, 2})};
           },
           {{5, 3, 4, 3}, {3, 6, 3, 2}, {6}}};
  // Input channels come first in the weight.
  c.silent = [](const std::vector<Placement>& p) {
    if (!kWhole(p[2])) return false;
    if (p[0] == Shard(0)) return kWhole(p[1]);
    return (kWhole(p[0]) && p[1] == Shard(1)) || (p[0] == Shard(1) && p[1] == Shard(0));
  };
  check_op(c, 20);
  check_op({"grouped",
            [](auto& t) { return Tensors{at::conv_transpose1d(t[0], t[1], t[2], 1, 0, 0, 2)}; },
            {{3, 4, 3}, {4, 3, 2}, {6}}});
}

TEST_CASE("grouped convolutions: whole groups stay on their ranks", "[ops][convolution]") {
  OpCase c{"twelve groups",
           [](auto& t) { return Tensors{at::conv1d(t[0], t[1], t[2], list({1}), list({0}), list({1}), 12)}; },
           {{2, 24, 3}, {12, 2, 2}, {12}}};
  c.silent = [](const std::vector<Placement>& p) {
    return (p[0] == Shard(1) && p[1] == Shard(0) && (p[2] == Shard(0) || kWhole(p[2]))) ||
           (p[0] == Shard(0) && kWhole(p[1]) && kWhole(p[2]));
  };
  check_op(c);
  c.name = "depthwise, uneven";
  c.fn = [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2], list({1, 1}), list({1, 1}), list({1, 1}), 5)}; };
  c.shapes = {{2, 5, 3, 4}, {5, 1, 3, 3}, {5}};
  check_op(c);
  c.name = "groups that do not divide";
  c.fn = [](auto& t) { return Tensors{at::conv1d(t[0], t[1], {}, list({1}), list({0}), list({1}), 2)}; };
  c.shapes = {{3, 4, 3}, {6, 2, 2}};
  c.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(0) && kWhole(p[1]); };
  check_op(c);
}

TEST_CASE("second derivatives of convolutions", "[ops][convolution]") {
  // The second derivative uses other convolutions.
  OpCase c{"gradient",
           [](auto& t) {
             const auto y = at::conv2d(t[0], t[1], t[2], list({1, 1}), list({1, 1}));
             return Tensors{y * y};
           },
           {{3, 2, 3, 4}, {4, 2, 2, 2}, {4}}};
  check_op(c, 20);
  c = {"_convolution",
       [](auto& t) {
         const std::vector<int64_t> one = {1, 1}, none = {0, 0};
         return Tensors{at::_convolution(t[0], t[1], t[2], one, none, one, false, none, 1, false, false, false, false)};
       },
       {{3, 2, 3, 4}, {4, 2, 2, 2}, {4}}};
  check_op(c, 20);
  check_op(
      {"conv_tbc", [](auto& t) { return Tensors{at::conv_tbc(t[0], t[1], t[2], 1)}; }, {{5, 3, 2}, {2, 2, 4}, {4}}},
      20);
}

TEST_CASE("convolutions in channels-last memory, also with empty parts", "[ops][convolution]") {
  for (const auto& mesh : test_meshes()) {
    const auto x = at::rand({5, 3, 4, 4}, at::kDouble), w = at::rand({2, 3, 2, 2}, at::kDouble);
    const auto last = at::MemoryFormat::ChannelsLast;
    const auto y = at::conv2d(distribute_tensor(x, mesh, Placements(mesh.ndim(), Shard(0))).contiguous(last),
                              distribute_tensor(w, mesh, Placements(mesh.ndim(), Replicate())));
    const auto expected = at::conv2d(x.contiguous(last), w);
    CHECK(y.strides() == expected.strides());
    CHECK(full_tensor(y).allclose(expected));
  }
}

// Floating-point operations of `run` on one of four ranks, and their ratio to an even share.
struct Work {
  double flops, share;
};

Work work_of(const std::function<void()>& run) {
  const CommDebugMode comm;
  run();
  return {comm.flops(), comm.work_share()};
}

TEST_CASE("the FLOP of convolutions are counted", "[ops][convolution]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"ranks"});
  const auto make = [&](std::vector<int64_t> sizes, const Placement& p) {
    return ones(sizes, mesh, {p}, {.requires_grad = true});
  };
  struct Row {
    const char* what;
    Placement input, weight;
    std::vector<int64_t> sizes, weight_sizes;
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> op;
    double whole;      // of one device, forward
    double share = 1;  // of a rank
  };
  const auto conv = [](const at::Tensor& x, const at::Tensor& w) {
    return at::conv2d(x, w, {}, list({1, 1}), list({1, 1}));
  };
  const double usual = 2.0 * 8 * 8 * (16 * 12) * (4 * 3 * 3);  // images, output channels, places, weights of each
  const Row rows[] = {
      {"images", Shard(0), Replicate(), {8, 4, 16, 12}, {8, 4, 3, 3}, conv, usual},
      {"channels out", Replicate(), Shard(0), {8, 4, 16, 12}, {8, 4, 3, 3}, conv, usual},
      {"channels in", Shard(1), Shard(1), {8, 4, 16, 12}, {8, 4, 3, 3}, conv, usual},
      {"rows of images", Shard(2), Replicate(), {8, 4, 16, 12}, {8, 4, 3, 3}, conv, usual},
      {"nothing split", Replicate(), Replicate(), {8, 4, 16, 12}, {8, 4, 3, 3}, conv, usual, 4},
      {"strides",
       Shard(0),
       Replicate(),
       {8, 4, 16, 12},
       {8, 4, 3, 3},
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::conv2d(x, w, {}, list({2, 2}), list({1, 1}));
       },
       usual / 4},
      {"groups",
       Shard(1),
       Shard(0),
       {8, 4, 16, 12},
       {8, 1, 3, 3},
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::conv2d(x, w, {}, list({1, 1}), list({1, 1}), list({1, 1}), 4);
       },
       usual / 4},
      {"transposed",
       Shard(0),
       Replicate(),
       {8, 4, 16, 12},
       {4, 8, 3, 3},
       [](const at::Tensor& x, const at::Tensor& w) {
         return at::conv_transpose2d(x, w, {}, list({2, 2}));
       },
       usual},
      {"over time",
       Shard(1),
       Replicate(),
       {10, 8, 4},
       {3, 4, 6},
       [](const at::Tensor& x, const at::Tensor& w) { return at::conv_tbc(x, w, at::zeros({6}, x.options()), 1); },
       2.0 * 10 * 8 * 6 * (4 * 3)},
  };
  for (const Row& row : rows) {
    INFO(row.what);
    const MeshScope scope(mesh);
    const at::Tensor x = make(row.sizes, row.input), w = make(row.weight_sizes, row.weight);
    at::Tensor y;
    const Work forward = work_of([&] { y = row.op(x, w); });
    CHECK(forward.flops == Approx(row.share * row.whole / 4));
    CHECK(forward.share == Approx(row.share));
    if (y.sizes().size() != 4) continue;
    const Work backward = work_of([&] { y.sum().backward(); });  // of both gradients
    CHECK(backward.flops == Approx(2 * row.share * row.whole / 4));
    CHECK(backward.share == Approx(row.share));
  }
}

}  // namespace
}  // namespace dtensor::testing
