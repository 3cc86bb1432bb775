// Convolution and pooling over split dims: the values of plain ATen, forward and backward, the layout of the input, and
// no more bytes than the windows reach.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>

#include <limits>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "tests/ops/halo_compare.h"

namespace dtensor::testing {
namespace {

TEST_CASE("halo: convolutions match ATen", "[ops][halo]") {
  for (const Split& s : splits()) {
    const auto run = [&](const char* name, const std::vector<Ints>& shapes, const Fn& fn) {
      compare(name, s.mesh, s.first, s.others, shapes, fn);
    };
    const std::vector<Ints> shapes = {{2, 4, 13, 11}, {6, 4, 3, 3}, {6}};
    run("conv2d", shapes, [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2])}; });
    run("conv2d same", shapes, [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2], 1, 1)}; });
    run("conv2d without bias", {shapes[0], shapes[1]},
        [](auto& t) { return Tensors{at::conv2d(t[0], t[1], {}, 1, 2)}; });
    run("conv2d stride", shapes, [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2], {2, 3}, {1, 0})}; });
    run("conv2d dilation", shapes, [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2], 1, 3, {2, 3})}; });
    run("conv2d groups", {{2, 4, 13, 11}, {6, 2, 3, 3}, {6}},
        [](auto& t) { return Tensors{at::conv2d(t[0], t[1], t[2], 1, 1, 1, 2)}; });
    run("conv2d depthwise", {{2, 4, 13, 11}, {4, 1, 3, 3}},
        [](auto& t) { return Tensors{at::conv2d(t[0], t[1], {}, 1, 1, 1, 4)}; });
    run("conv2d wide", {{2, 3, 9, 10}, {2, 3, 7, 8}}, [](auto& t) {
      return Tensors{at::conv2d(t[0], t[1], {}, 1, {3, 4})};
    });
  }
  compare("conv1d", line(), {Shard(2)}, {Replicate()}, {{2, 3, 17}, {5, 3, 4}, {5}},
          [](auto& t) { return Tensors{at::conv1d(t[0], t[1], t[2], 2, 3)}; });
  compare("conv3d", grid(), {Shard(2), Shard(4)}, {Replicate(), Replicate()}, {{1, 2, 7, 5, 8}, {3, 2, 3, 2, 3}, {3}},
          [](auto& t) {
            return Tensors{at::conv3d(t[0], t[1], t[2], 1, {1, 0, 1})};
          });
}

TEST_CASE("halo: convolutions with channels split by other mesh dims", "[ops][halo]") {
  const std::vector<Ints> shapes = {{2, 4, 13, 11}, {6, 4, 3, 3}, {6}};
  const Fn conv = [](const Tensors& t) { return Tensors{at::conv2d(t[0], t[1], t[2], 1, 1)}; };
  // Input channels, and output channels.
  compare("in", grid(), {Shard(1), Shard(2)}, {Replicate(), Replicate()}, shapes, conv, /*keeps=*/false);
  compare("out", grid(), {Replicate(), Shard(3)}, {Shard(0), Replicate()}, shapes, conv, /*keeps=*/false);
  compare("fewer channels than ranks", grid(), {Shard(2), Shard(1)}, {Replicate(), Replicate()},
          {{2, 2, 13, 11}, {6, 2, 3, 3}, {6}}, conv, /*keeps=*/false);
}

TEST_CASE("halo: pooling matches ATen", "[ops][halo]") {
  for (const Split& s : splits()) {
    const auto run = [&](const char* name, const Fn& fn) {
      compare(name, s.mesh, s.first, s.others, {{2, 4, 13, 11}}, fn);
    };
    const auto max = [](const std::tuple<at::Tensor, at::Tensor>& both) {
      return Tensors{std::get<0>(both), std::get<1>(both)};
    };
    run("max", [&](auto& t) { return max(at::max_pool2d_with_indices(t[0], 2)); });
    run("max padded", [&](auto& t) { return max(at::max_pool2d_with_indices(t[0], 3, 2, 1)); });
    run("max dilated", [&](auto& t) { return max(at::max_pool2d_with_indices(t[0], {3, 2}, 1, {1, 0}, {2, 3})); });
    run("max ceil", [&](auto& t) { return max(at::max_pool2d_with_indices(t[0], 3, 3, 1, 1, true)); });
    run("avg", [](auto& t) { return Tensors{at::avg_pool2d(t[0], 3, 1)}; });
    run("avg padded", [](auto& t) { return Tensors{at::avg_pool2d(t[0], {3, 4}, 2, {1, 2})}; });
    run("avg without padding", [](auto& t) { return Tensors{at::avg_pool2d(t[0], 3, 2, 1, false, false)}; });
    run("avg ceil", [](auto& t) { return Tensors{at::avg_pool2d(t[0], 3, 2, 1, true, true)}; });
    run("avg ceil without padding", [](auto& t) { return Tensors{at::avg_pool2d(t[0], 3, 2, 1, true, false)}; });
    run("avg divisor", [](auto& t) { return Tensors{at::avg_pool2d(t[0], 3, 2, 1, false, true, 7)}; });
  }
  const std::vector<Ints> volume = {{2, 3, 7, 5, 8}};
  compare("max3d", grid(), {Shard(2), Shard(4)}, {}, volume, [](auto& t) {
    auto [values, indices] = at::max_pool3d_with_indices(t[0], 3, 2, 1);
    return Tensors{values, indices};
  });
  compare("avg3d", grid(), {Shard(2), Shard(4)}, {}, volume,
          [](auto& t) { return Tensors{at::avg_pool3d(t[0], 3, 2, 1, false, false)}; });
}

TEST_CASE("halo: max pooling of lowest numbers only returns one of them", "[ops][halo]") {
  const at::Tensor lowest = at::full({1, 1, 9, 9}, -std::numeric_limits<double>::infinity(), at::kDouble);
  auto [value, index] = at::max_pool2d_with_indices(lowest, 3, 2, 1);
  auto [split_value, split_index] = at::max_pool2d_with_indices(lay_out(lowest, grid(), {Shard(2), Shard(3)}), 3, 2, 1);
  CHECK(full_tensor(split_value).equal(value));
  CHECK(full_tensor(split_index).equal(index));
}

TEST_CASE("halo: a convolution receives what its windows reach, once in forward and once in backward", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(16), {4, 4}, {"y", "x"});
  const auto meta = [](const Ints& sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)); };
  at::Tensor image = distribute_tensor(meta({1, 8, 1024, 2048}), mesh, {Shard(2), Shard(3)}).requires_grad_();
  at::Tensor weight = distribute_tensor(meta({8, 8, 5, 5}), mesh, {Replicate(), Replicate()});
  const int64_t a = 1024 / 4, b = 2048 / 4, w = 2, channels = 8;
  const int64_t halo = (2 * w * (a + b) + 4 * w * w) * channels * 4;  // edges and corners of a tile
  const at::Tensor seed = distribute_tensor(meta({1, 8, 1024, 2048}), mesh, {Shard(2), Shard(3)});
  at::Tensor result;
  CommDebugMode comm;
  result = at::conv2d(image, weight, {}, 1, w);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == halo);
  CHECK(DTensor(result).placements() == Placements{Shard(2), Shard(3)});
  comm.reset();
  result.backward(seed);
  CHECK(comm.total() == 1);  // of the image only: the weight needs no gradient
  CHECK(comm.bytes() == halo);
  CHECK(DTensor(image.grad()).placements() == Placements{Shard(2), Shard(3)});

  // The weight's gradient reads the windows of forward again, and is summed over ranks.
  weight.requires_grad_();
  result = at::conv2d(image.detach(), weight, {}, 1, w);
  comm.reset();
  result.backward(seed);
  CHECK(comm.count("all_reduce") == 1);
  CHECK(comm.total() == 1);
}

TEST_CASE("halo: a convolution's windows are cached until a write", "[ops][halo]") {
  const at::Tensor plain = at::randn({2, 3, 13, 11}, at::kDouble), weight = at::randn({4, 3, 3, 3}, at::kDouble);
  const at::Tensor split = distribute_tensor(plain, grid(), {Shard(2), Shard(3)});
  const at::Tensor other = at::randn({4, 3, 5, 5}, at::kDouble);
  const auto whole = [](const at::Tensor& t) { return lay_out(t, grid(), {Replicate(), Replicate()}); };
  const at::Tensor split_weight = whole(weight), split_other = whole(other);
  const auto check = [&](int64_t exchanges, int64_t padding, bool wide) {
    CommDebugMode comm;
    const at::Tensor actual = at::conv2d(split, wide ? split_other : split_weight, {}, 1, padding);
    CHECK(comm.total() == exchanges);
    const at::Tensor expected = at::conv2d(plain, wide ? other : weight, {}, 1, padding);
    CHECK(difference(actual, expected).value_or("") == "");
  };
  check(1, 1, false);
  check(0, 1, false);
  check(1, 2, true);  // other windows
  check(0, 2, true);
  check(0, 1, false);
  check(1, 0, false);
  plain.add_(1);
  split.add_(1);
  check(1, 1, false);
  const at::NoGradGuard no_grad;  // no later use
  plain.add_(1);
  split.add_(1);
  check(1, 1, false);
  check(1, 1, false);
}

TEST_CASE("halo: a convolution with plain replicated weights fetches its halo only", "[ops][halo]") {
  for (const bool transposed : {false, true}) {
    CAPTURE(transposed);
    const at::Tensor plain = at::randn({2, 3, 13, 11}, at::kDouble);
    const at::Tensor split = distribute_tensor(plain, grid(), {Shard(2), Shard(3)});
    const auto gradients = [&](const at::Tensor& image, bool counts) {
      const at::Tensor weight = at::full({3, 3, 3, 3}, 0.5, at::kDouble).requires_grad_();
      const at::Tensor bias = at::full({3}, 0.25, at::kDouble).requires_grad_();
      const ImplicitReplication scope;
      CommDebugMode comm;
      const at::Tensor result =
          transposed ? at::conv_transpose2d(image, weight, bias, 1, 1) : at::conv2d(image, weight, bias, 1, 1);
      if (counts) CHECK(comm.total() == 1);
      if (counts) CHECK(DTensor(result).placements() == Placements{Shard(2), Shard(3)});
      result.square().sum().backward();
      return Tensors{result.detach(), weight.grad(), bias.grad()};
    };
    const Tensors expected = gradients(plain, false), actual = gradients(split, true);
    for (size_t k = 0; k < expected.size(); ++k) CHECK(difference(actual[k], expected[k]).value_or("") == "");
  }
}

}  // namespace
}  // namespace dtensor::testing
