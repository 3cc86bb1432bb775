// Pooling, interpolation, sampling, padding: batch and channels stay split.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_pad_circular.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/adaptive_avg_pool3d.h>
#include <ATen/ops/adaptive_max_pool2d.h>
#include <ATen/ops/adaptive_max_pool3d.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/channel_shuffle.h>
#include <ATen/ops/col2im.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/fractional_max_pool2d.h>
#include <ATen/ops/fractional_max_pool3d.h>
#include <ATen/ops/grid_sampler.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/max_pool1d.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/max_unpool2d.h>
#include <ATen/ops/max_unpool3d.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/pad.h>
#include <ATen/ops/pixel_shuffle.h>
#include <ATen/ops/pixel_unshuffle.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randperm.h>
#include <torch/nn/functional/pooling.h>

#include <functional>
#include <tuple>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "placement/geometry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;
using Shape = std::vector<int64_t>;

// With one input, split by batch or channels, or Partial if the operator is linear, there is no communication.
// `interleaved`: also if ranks have several runs of a dim.
void check_image(const std::string& name, const Shape& shape, std::function<at::Tensor(const at::Tensor&)> fn,
                 bool linear = true, int64_t free_dims = 2, bool interleaved = true) {
  OpCase c{name, [fn](auto& t) { return Tensors{fn(t[0])}; }, {shape}};
  c.silent = [=](const std::vector<Placement>& p) {
    if (p[0].is_strided_shard() && !interleaved) return false;
    return p[0].is_sharded() ? p[0].dim() < free_dims : p[0] == Replicate() || linear;
  };
  c.strided_inputs = true;
  check_op(c, 20);
}

const Shape kSignal = {5, 3, 7}, kImage = {5, 3, 6, 7}, kVolume = {3, 5, 4, 5, 6};

TEST_CASE("average pooling", "[ops][images]") {
  check_image("avg_pool1d", kSignal, [](auto& x) { return at::avg_pool1d(x, 2); });
  check_image("avg_pool2d", kImage, [](auto& x) { return at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 0}, true, false); });
  check_image("avg_pool3d", kVolume, [](auto& x) { return at::avg_pool3d(x, 2); });
  check_image("adaptive_avg_pool2d", kImage, [](auto& x) { return at::adaptive_avg_pool2d(x, {2, 3}); });
  check_image("adaptive_avg_pool3d", kVolume, [](auto& x) { return at::adaptive_avg_pool3d(x, {2, 3, 2}); });
  check_image("global", kImage, [](auto& x) { return at::adaptive_avg_pool2d(x, {1, 1}); });
  check_image(
      "unbatched", {5, 6, 7}, [](auto& x) { return at::avg_pool2d(x, 2); }, true, 1);
  check_image("no images", {0, 3, 6, 7}, [](auto& x) { return at::avg_pool2d(x, 2); });
}

TEST_CASE("the mean of integers is rounded, so that Partials are reduced first", "[ops][images]") {
  const DeviceMesh mesh(World::local(3), {3});
  const at::Tensor x = at::arange(16).view({1, 4, 4});
  const auto addends = from_local({x - 2, at::ones_like(x), at::ones_like(x)}, mesh, {Partial()});
  CHECK(at::equal(full_tensor(at::avg_pool2d(addends, 2)), at::avg_pool2d(x, 2)));
}

TEST_CASE("maximum pooling and its inverse", "[ops][images]") {
  check_image(
      "max_pool1d", kSignal, [](auto& x) { return at::max_pool1d(x, 2); }, false);
  check_image(
      "max_pool2d", kImage,
      [](auto& x) {
        return at::max_pool2d(x, {3, 2}, {2, 1}, {1, 0});
      },
      false);
  check_image(
      "max_pool2d indices", kImage, [](auto& x) { return std::get<1>(at::max_pool2d_with_indices(x, 2)); }, false);
  check_image(
      "max_pool3d", kVolume, [](auto& x) { return std::get<0>(at::max_pool3d_with_indices(x, 2)); }, false);
  check_image(
      "max_pool3d indices", kVolume, [](auto& x) { return std::get<1>(at::max_pool3d_with_indices(x, 2)); }, false);
  check_image(
      "adaptive_max_pool2d", kImage,
      [](auto& x) {
        return std::get<0>(at::adaptive_max_pool2d(x, {2, 3}));
      },
      false);
  check_image(
      "adaptive_max_pool3d", kVolume,
      [](auto& x) {
        return std::get<0>(at::adaptive_max_pool3d(x, {2, 3, 2}));
      },
      false);
  check_image(
      "unpooled", kImage,
      [](auto& x) {
        const auto [y, index] = at::max_pool2d_with_indices(x, 2);
        return at::max_unpool2d(y, index, {6, 7});
      },
      false);
  check_image(
      "unpooled volume", {3, 5, 4, 6, 6},
      [](auto& x) {
        const auto [y, index] = at::max_pool3d_with_indices(x, 2);
        return at::max_unpool3d(y, index, {4, 6, 6}, {2, 2, 2}, {0, 0, 0});
      },
      false);
  check_image(
      "lp_pool2d", kImage,
      [](auto& x) {
        return torch::nn::functional::lp_pool2d(x.abs() + 0.5, torch::nn::functional::LPPool2dFuncOptions(3, 2));
      },
      false);
}

TEST_CASE("fractional pooling takes samples for more images than there are", "[ops][images]") {
  torch::manual_seed(0);
  const auto x = torch::rand({2, 3, 9, 9}, torch::kDouble), samples = torch::rand({4, 3, 2}, torch::kDouble);
  const auto pooled = [&](const at::Tensor& images) {
    return std::get<0>(at::fractional_max_pool2d(images, {2, 2}, {3, 4}, samples));
  };
  const auto expected = pooled(x);
  REQUIRE_FALSE(pooled(x.slice(0, 1)).equal(expected.slice(0, 1)));  // the samples of the other image
  const DeviceMesh mesh(World::local(2), {2});
  for (const int64_t dim : {0, 1}) {
    const auto y = at::fractional_max_pool2d(distribute_tensor(x, mesh, {Shard(dim)}), {2, 2}, {3, 4},
                                             distribute_tensor(samples, mesh, {Shard(dim)}));
    CHECK(full_tensor(std::get<0>(y)).equal(expected));
  }
}

TEST_CASE("circular padding by negative numbers shares no memory with the image", "[ops][images]") {
  const auto x = torch::rand({2, 3, 6}, torch::kDouble);
  const DeviceMesh mesh(World::local(2), {2});
  const auto image = distribute_tensor(x, mesh, {Shard(2)});
  const auto cut = at::_pad_circular(image, {-1, 0});
  CHECK(full_tensor(cut).equal(x.slice(2, 1)));
  cut.zero_();
  CHECK(full_tensor(image).equal(x));
}

TEST_CASE("fractional pooling with split samples", "[ops][images]") {
  OpCase c{"fractional_max_pool2d",
           [](auto& t) {
             const auto [y, index] = at::fractional_max_pool2d(t[0], {2, 2}, {3, 4}, t[1]);
             return Tensors{y, index};
           },
           {{5, 3, 6, 7}, {5, 3, 2}}};
  c.make = [](size_t, const auto& shape) { return at::rand(shape, at::kDouble); };
  c.grad = {true, false};
  c.partial_inputs = false;
  c.silent = [](const std::vector<Placement>& p) { return p[0] == p[1] && (p[0] == Shard(0) || p[0] == Shard(1)); };
  check_op(c, 20);
  c.name = "unbatched", c.shapes = {{5, 6, 7}, {1, 5, 2}}, c.silent = {};
  check_op(c, 20);
  c.name = "fractional_max_pool3d", c.shapes = {{3, 2, 5, 6, 7}, {3, 2, 3}};
  c.fn = [](auto& t) {
    const auto [y, index] = at::fractional_max_pool3d(t[0], {2, 2, 2}, {2, 3, 4}, t[1]);
    return Tensors{y, index};
  };
  check_op(c, 20);
}

TEST_CASE("interpolation", "[ops][images]") {
  struct Interpolation {
    const char* op;
    size_t dims;
    bool corners;
  };
  const Interpolation all[] = {
      {"upsample_nearest1d", 1, false}, {"_upsample_nearest_exact1d", 1, false}, {"upsample_linear1d", 1, true},
      {"upsample_nearest2d", 2, false}, {"_upsample_nearest_exact2d", 2, false}, {"upsample_bilinear2d", 2, true},
      {"upsample_bicubic2d", 2, true},  {"_upsample_bilinear2d_aa", 2, true},    {"_upsample_bicubic2d_aa", 2, true},
      {"upsample_nearest3d", 3, false}, {"_upsample_nearest_exact3d", 3, false}, {"upsample_trilinear3d", 3, true},
  };
  for (const Interpolation& i : all) {
    const Shape shapes[] = {kSignal, kImage, kVolume}, sizes[] = {{4}, {9, 4}, {5, 3, 8}};
    check_image(i.op, shapes[i.dims - 1], [&](const at::Tensor& x) {
      std::vector<c10::IValue> args = {x, sizes[i.dims - 1]};
      if (i.corners) args.emplace_back(false);
      return call_op(std::string("aten::") + i.op, args)[0];
    });
  }
}

TEST_CASE("padding modes", "[ops][images]") {
  const std::pair<Shape, std::vector<Shape>> all[] = {
      {{2, 1}, {{5, 3, 4}, {5, 4}}},
      {{2, 1, 0, 3}, {{5, 3, 6, 4}, {5, 4, 3}}},
      {{2, 1, 0, 1, 1, 1}, {{3, 5, 4, 3, 4}, {5, 2, 3, 4}}},
  };
  for (const char* mode : {"reflect", "replicate", "circular"}) {
    for (const auto& [padding, shapes] : all) {
      for (const Shape& shape : shapes) {
        const auto free_dims = static_cast<int64_t>(shape.size() - padding.size() / 2);
        check_image(
            mode, shape, [&, p = padding](const at::Tensor& x) { return at::pad(x, p, mode); }, true, free_dims);
      }
    }
  }
}

TEST_CASE("sampling at positions", "[ops][images]") {
  OpCase c{"grid_sampler_2d",
           [](auto& t) { return Tensors{at::grid_sampler(t[0], t[1], 0, 0, false)}; },
           {{5, 3, 4, 6}, {5, 2, 3, 2}}};
  c.silent = [](const std::vector<Placement>& p) {
    const bool by_position = p[1] == Shard(1) || p[1] == Shard(2);
    return (p[0] == Shard(0) && p[1] == Shard(0)) || (p[0] == Replicate() && by_position) ||
           ((p[0] == Shard(1) || p[0] == Partial()) && p[1] == Replicate());
  };
  check_op(c, 30);
  c.name = "grid_sampler_3d", c.shapes = {{3, 2, 4, 3, 3}, {3, 2, 1, 3, 3}};
  check_op(c, 30);
  c.name = "bicubic, reflected";
  c.fn = [](auto& t) { return Tensors{at::grid_sampler(t[0], t[1], 2, 2, true)}; };
  c.shapes = {{5, 3, 4, 6}, {5, 2, 3, 2}};
  check_op(c, 30);
  c.name = "no gradient of the image", c.grad = {false, true};
  check_op(c, 30);
  check_image(
      "affine_grid_generator", {5, 2, 3},
      [](auto& x) {
        return at::affine_grid_generator(x, {5, 2, 3, 4}, false);
      },
      true, 1);
  check_image(
      "affine_grid_generator 3d", {5, 3, 4},
      [](auto& x) {
        return at::affine_grid_generator(x, {5, 2, 3, 4, 2}, true);
      },
      true, 1);
}

TEST_CASE("pixels to channels and back", "[ops][images]") {
  const auto check = [](const char* name, const Shape& shape, int64_t free_dims, auto fn) {
    check_image(name, shape, fn, /*linear=*/true, free_dims, /*interleaved=*/false);
  };
  const auto columns = [](auto& x) { return at::im2col(x, {2, 3}, {1, 1}, {1, 0}, {2, 1}); };
  const auto images = [](auto& x) { return at::col2im(x, {5, 6}, {2, 2}, {1, 1}, {0, 0}, {1, 1}); };
  // Channels stay split if every rank has whole pixels: 48 channels of 4 are 12 on every rank.
  check("pixel_shuffle", {3, 48, 2, 3}, 2, [](auto& x) { return at::pixel_shuffle(x, 2); });
  check("pixel_unshuffle", {3, 12, 4, 6}, 2, [](auto& x) { return at::pixel_unshuffle(x, 2); });
  check("uneven pixels", {3, 20, 2, 3}, 1, [](auto& x) { return at::pixel_shuffle(x, 2); });
  check("one pixel", {4, 2, 3}, 0, [](auto& x) { return at::pixel_shuffle(x, 2); });
  // Spatial dims stay split if every rank has whole pixels, as many as the others.
  const auto check_space = [](const char* name, const Shape& shape, auto fn) {
    OpCase c{name, [fn](auto& t) { return Tensors{fn(t[0])}; }, {shape}};
    c.silent = [](const std::vector<Placement>& p) { return p[0] == Shard(2) || p[0] == Shard(3); };
    check_op(c);
  };
  check_space("pixel_shuffle of space", {2, 8, 12, 12}, [](auto& x) { return at::pixel_shuffle(x, 2); });
  check_space("pixel_unshuffle of space", {2, 3, 36, 36}, [](auto& x) { return at::pixel_unshuffle(x, 3); });
  // Uneven ones, too: 8 rows are 3, 3 and 2 on three ranks, and 16 are 6, 6 and 4.
  check_space("pixel_shuffle of uneven space", {2, 8, 8, 8}, [](auto& x) { return at::pixel_shuffle(x, 2); });
  check_space("pixel_unshuffle of uneven space", {2, 3, 16, 16}, [](auto& x) { return at::pixel_unshuffle(x, 2); });
  check_space("pixel_shuffle by one", {2, 3, 5, 7}, [](auto& x) { return at::pixel_shuffle(x, 1); });
  check("channel_shuffle", {3, 6, 2, 3}, 1, [](auto& x) { return at::channel_shuffle(x, 2); });
  check("channel_shuffle of one group", {3, 6, 2, 3}, 2, [](auto& x) { return at::channel_shuffle(x, 1); });
  check("channel_shuffle of single channels", {3, 6, 2, 3}, 2, [](auto& x) { return at::channel_shuffle(x, 6); });
  check("im2col", {3, 12, 4, 5}, 2, columns);
  check("im2col, uneven channels", {3, 5, 4, 5}, 1, columns);
  check("im2col of one image", {12, 4, 5}, 1, columns);
  check("col2im", {3, 48, 20}, 2, images);
  check("col2im, uneven channels", {3, 20, 20}, 1, images);
}

TEST_CASE("pixel_unshuffle by 1 returns a copy, as ATen does", "[ops][images]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto x = distribute_tensor(at::rand({1, 2, 4}, at::kDouble) + 1, mesh, {Shard(2)});
  at::pixel_unshuffle(x, 1).zero_();
  CHECK(full_tensor(x).ne(0).all().item<bool>());
}

}  // namespace
}  // namespace dtensor::testing
