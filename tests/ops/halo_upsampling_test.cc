// Upsampling over split dims by whole factors: the values of plain ATen, first and second derivatives, the layout of
// the input, and no more bytes than the interpolation needs.
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/ops/halo_compare.h"

namespace dtensor::testing {
namespace {

// `corners`: whether the operator has the argument align_corners.
at::Tensor upsampled(const std::string& op, bool corners, const at::Tensor& t, const Ints& sizes) {
  std::vector<c10::IValue> args = {t, sizes};
  if (corners) args.emplace_back(false);
  return call_op("aten::" + op, args)[0];
}

struct Upsampling {
  const char* name;
  bool corners;
};
constexpr Upsampling kPlanar[] = {{"upsample_nearest2d", false},
                                  {"_upsample_nearest_exact2d", false},
                                  {"upsample_bilinear2d", true},
                                  {"upsample_bicubic2d", true}};

TEST_CASE("halo: upsampling matches ATen", "[ops][halo]") {
  // Sizes that divide, that do not, and empty parts.
  const std::vector<Ints> all_sizes = {{2, 4, 12, 18}, {2, 3, 13, 11}, {1, 2, 3, 2}};
  for (const Split& s : splits()) {
    if (s.others[0].is_sharded()) continue;  // there is no weight
    for (const Ints& sizes : all_sizes) {
      for (const Upsampling& op : kPlanar) {
        for (const Ints& factors : {Ints{2, 2}, Ints{3, 5}}) {
          const std::string name = c10::str(op.name, " ", c10::IntArrayRef(sizes), " by ", c10::IntArrayRef(factors));
          const Ints result = {sizes[2] * factors[0], sizes[3] * factors[1]};
          compare(name.c_str(), s.mesh, s.first, {}, {sizes},
                  [&](auto& t) { return Tensors{upsampled(op.name, op.corners, t[0], result)}; });
        }
      }
    }
  }
}

TEST_CASE("halo: upsampling of signals and volumes", "[ops][halo]") {
  for (const Upsampling& op : {Upsampling{"upsample_nearest1d", false}, Upsampling{"_upsample_nearest_exact1d", false},
                               Upsampling{"upsample_linear1d", true}}) {
    for (const int64_t size : {16, 15, 2}) {
      compare(op.name, line(), {Shard(2)}, {}, {{2, 3, size}},
              [&](auto& t) { return Tensors{upsampled(op.name, op.corners, t[0], {4 * size})}; });
    }
  }
  for (const Upsampling& op : {Upsampling{"upsample_nearest3d", false}, Upsampling{"_upsample_nearest_exact3d", false},
                               Upsampling{"upsample_trilinear3d", true}}) {
    compare(op.name, grid(), {Shard(2), Shard(4)}, {}, {{1, 2, 4, 5, 7}}, [&](auto& t) {
      return Tensors{upsampled(op.name, op.corners, t[0], {8, 5, 21})};
    });
  }
}

TEST_CASE("halo: dims that are not sharded are upsampled by any factor", "[ops][halo]") {
  for (const Upsampling& op : kPlanar) {
    compare(op.name, line(), {Shard(2)}, {}, {{2, 3, 8, 7}}, [&](auto& t) {
      return Tensors{upsampled(op.name, op.corners, t[0], {16, 17})};
    });
    compare(op.name, line(), {Shard(2)}, {}, {{2, 3, 8, 7}}, [&](auto& t) {
      return Tensors{upsampled(op.name, op.corners, t[0], {16, 4})};
    });
  }
}

TEST_CASE("halo: upsampling by other than a whole factor follows the rule", "[ops][halo]") {
  for (const Upsampling& op : kPlanar) {
    compare(
        op.name, line(), {Shard(2)}, {}, {{2, 3, 8, 7}},
        [&](auto& t) {
          return Tensors{upsampled(op.name, op.corners, t[0], {13, 7})};
        },
        /*keeps=*/false);
  }
  compare(
      "aligned corners", line(), {Shard(2)}, {}, {{2, 3, 8, 7}},
      [](auto& t) {
        return Tensors{at::upsample_bilinear2d(t[0], {16, 7}, true)};
      },
      /*keeps=*/false);
  // As many places as with factor 2, but other elements.
  compare(
      "another factor is given", line(), {Shard(2)}, {}, {{2, 3, 4, 4}},
      [](auto& t) {
        return Tensors{at::upsample_bilinear2d(t[0], {8, 8}, false, 2.2, 2.2)};
      },
      /*keeps=*/false);
  // In single precision 41 * (1 / 41) is less than 1.
  compare(
      "inexact", line(), {Shard(2)}, {}, {{1, 1, 8, 1}},
      [](auto& t) {
        return Tensors{at::upsample_nearest2d(t[0], {8 * 41, 1})};
      },
      /*keeps=*/false);
}

TEST_CASE("halo: upsampling with given factors", "[ops][halo]") {
  compare("bilinear", grid(), {Shard(2), Shard(3)}, {}, {{2, 3, 8, 9}}, [](auto& t) {
    return Tensors{at::upsample_bilinear2d(t[0], {16, 27}, false, 2.0, 3.0)};
  });
  compare("nearest", line(), {Shard(2)}, {}, {{2, 3, 8, 9}}, [](auto& t) {
    return Tensors{at::upsample_nearest2d(t[0], {16, 22}, 2.0, 2.5)};
  });
}

TEST_CASE("halo: upsampling of Partials, and of channels-last tensors", "[ops][halo]") {
  compare(
      "addends", grid(), {Partial(), Shard(2)}, {}, {{2, 3, 12, 5}},
      [](auto& t) {
        return Tensors{at::upsample_bilinear2d(t[0], {24, 10}, false)};
      },
      /*keeps=*/false);
  for (const Upsampling& op : kPlanar) {
    compare(op.name, line(), {Shard(2)}, {}, {{2, 3, 12, 5}}, [&](auto& t) {
      const at::Tensor x = t[0].contiguous(at::MemoryFormat::ChannelsLast);
      return Tensors{upsampled(op.name, op.corners, x, {24, 10})};
    });
  }
}

TEST_CASE("halo: second derivatives of upsampling", "[ops][halo]") {
  for (const Upsampling& op : kPlanar) {
    const at::Tensor plain = at::randn({2, 3, 12, 5}, at::kDouble).requires_grad_();
    const at::Tensor split = lay_out(plain, line(), {Shard(2)}).requires_grad_();
    const auto second = [&](const at::Tensor& t) {
      const at::Tensor result = upsampled(op.name, op.corners, t, {24, 10});
      const at::Tensor sum = (result * result * result).sum();
      const at::Tensor first = torch::autograd::grad({sum}, {t}, {}, {}, /*create_graph=*/true)[0];
      return torch::autograd::grad({(first * first).sum()}, {t})[0];
    };
    const at::Tensor expected = second(plain), actual = second(split);
    CAPTURE(op.name);
    CHECK(difference(actual, expected).value_or("") == "");
    CHECK(DTensor(actual).placements() == Placements{Shard(2)});
  }
}

TEST_CASE("halo: upsampling receives the interpolated elements, once in forward and once in backward", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(16), {4, 4}, {"y", "x"});
  const auto meta = [](const Ints& sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)); };
  const int64_t a = 1024 / 4, b = 2048 / 4, channels = 8;
  const auto halo = [&](int64_t w) { return (2 * w * (a + b) + 4 * w * w) * channels * 4; };
  const Placements tiles = {Shard(2), Shard(3)};
  for (const auto& [op, width] : {std::pair{kPlanar[0], 0}, {kPlanar[1], 0}, {kPlanar[2], 1}, {kPlanar[3], 2}}) {
    CAPTURE(op.name);
    const at::Tensor image = distribute_tensor(meta({1, channels, 1024, 2048}), mesh, tiles).requires_grad_();
    const at::Tensor seed = distribute_tensor(meta({1, channels, 2048, 4096}), mesh, tiles);
    CommDebugMode comm;
    const at::Tensor result = upsampled(op.name, op.corners, image, {2048, 4096});
    CHECK(DTensor(result).placements() == tiles);
    CHECK(comm.total() == (width > 0 ? 1 : 0));
    CHECK(comm.bytes() == halo(width));
    comm.reset();
    result.backward(seed);
    CHECK(DTensor(image.grad()).placements() == tiles);
    CHECK(comm.total() == (width > 0 ? 1 : 0));
    CHECK(comm.bytes() == halo(width));
  }
}

TEST_CASE("halo: grids that halve and double do not communicate", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"y"});
  const auto rows = [&] {
    const auto options = at::TensorOptions(at::kMeta).dtype(at::kFloat);
    return distribute_tensor(at::empty({1, 8, 1024, 512}, options), mesh, {Shard(2)});
  };
  const at::Tensor image = rows().requires_grad_(), seed = rows();
  CommDebugMode comm;
  const at::Tensor coarse = at::avg_pool2d(image, 2);
  const at::Tensor residual = image - at::upsample_nearest2d(coarse, {1024, 512});
  CHECK(DTensor(residual).placements() == Placements{Shard(2)});
  residual.backward(seed);
  CHECK(DTensor(image.grad()).placements() == Placements{Shard(2)});
  CHECK(comm.total() == 0);
}

TEST_CASE("halo: a Partial maximum is reduced for windows and grids that add elements up", "[ops][halo]") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  const at::Tensor a = at::randn({1, 2, 8, 6}, at::kDouble), b = at::randn({1, 2, 8, 6}, at::kDouble);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& t : {a, b}) {
    for (const int64_t row : {0, 4}) parts.push_back(t.narrow(2, row, 4).contiguous());
  }
  const at::Tensor x = from_local(parts, mesh, {Partial(ReduceOp::kMax), Shard(2)}), plain = at::maximum(a, b);
  CHECK(difference(at::avg_pool2d(x, 3, 1, 1), at::avg_pool2d(plain, 3, 1, 1)).value_or("") == "");
  for (const Upsampling& op : kPlanar) {
    INFO(op.name);
    const at::Tensor y = upsampled(op.name, op.corners, x, {16, 12});
    CHECK(difference(y, upsampled(op.name, op.corners, plain, {16, 12})).value_or("") == "");
  }
}

}  // namespace
}  // namespace dtensor::testing
