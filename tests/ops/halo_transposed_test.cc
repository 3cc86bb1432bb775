// Transposed convolutions over split dims: the values of plain ATen, forward and backward, the layout of the input, and
// no more bytes than reach a rank's part of the result.
#include <ATen/ops/conv_transpose1d.h>
#include <ATen/ops/conv_transpose2d.h>
#include <ATen/ops/conv_transpose3d.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/ops/halo_compare.h"

namespace dtensor::testing {
namespace {

TEST_CASE("halo: transposed convolutions match ATen", "[ops][halo]") {
  for (const Split& s : splits()) {
    // Sizes that divide, that do not, and empty parts.
    for (const Ints& image : {Ints{2, 4, 12, 18}, {2, 4, 13, 11}, {1, 4, 3, 2}}) {
      const auto run = [&](const char* name, const Ints& kernel, const Fn& fn, bool biased = true) {
        std::vector<Ints> shapes = {image, kernel};
        if (biased) shapes.push_back({6});
        CAPTURE(c10::IntArrayRef(image));
        compare(name, s.mesh, s.first, s.others, shapes, fn);
      };
      run("blocks", {4, 6, 2, 3}, [](auto& t) { return Tensors{at::conv_transpose2d(t[0], t[1], t[2], {2, 3})}; });
      run(
          "blocks without bias", {4, 6, 2, 2}, [](auto& t) { return Tensors{at::conv_transpose2d(t[0], t[1], {}, 2)}; },
          false);
      run("overlapping", {4, 6, 4, 3}, [](auto& t) {
        return Tensors{at::conv_transpose2d(t[0], t[1], t[2], {2, 1}, {1, 0})};
      });
      run("padded, and more", {4, 6, 3, 3},
          [](auto& t) { return Tensors{at::conv_transpose2d(t[0], t[1], t[2], 2, 1, 1)}; });
      run("gaps", {4, 6, 1, 2}, [](auto& t) { return Tensors{at::conv_transpose2d(t[0], t[1], t[2], 3, 0, {1, 2})}; });
      run("dilated", {4, 6, 3, 2}, [](auto& t) {
        return Tensors{at::conv_transpose2d(t[0], t[1], t[2], {1, 2}, {1, 0}, {1, 0}, 1, {2, 3})};
      });
      run("groups", {4, 3, 2, 2}, [](auto& t) { return Tensors{at::conv_transpose2d(t[0], t[1], t[2], 2, 0, 0, 2)}; });
    }
  }
  compare("1d", line(), {Shard(2)}, {Replicate()}, {{2, 3, 17}, {3, 5, 5}, {5}},
          [](auto& t) { return Tensors{at::conv_transpose1d(t[0], t[1], t[2], 2, 2, 1)}; });
  compare("3d", grid(), {Shard(2), Shard(4)}, {Replicate(), Replicate()}, {{1, 2, 4, 3, 6}, {2, 3, 2, 2, 2}, {3}},
          [](auto& t) { return Tensors{at::conv_transpose3d(t[0], t[1], t[2], 2)}; });
}

TEST_CASE("halo: transposed convolutions with channels split by other mesh dims", "[ops][halo]") {
  const std::vector<Ints> shapes = {{2, 4, 13, 11}, {4, 6, 3, 3}, {6}};
  const Fn conv = [](const Tensors& t) {
    return Tensors{at::conv_transpose2d(t[0], t[1], t.size() > 2 ? t[2] : at::Tensor(), 2, 1)};
  };
  const Placements whole = {Replicate(), Replicate()};
  // Input channels, and output channels.
  compare("in", grid(), {Shard(1), Shard(2)}, whole, shapes, conv, /*keeps=*/false);
  compare("out", grid(), {Replicate(), Shard(3)}, {Shard(1), Replicate()}, {shapes[0], shapes[1]}, conv,
          /*keeps=*/false);
  compare("fewer channels than ranks", grid(), {Shard(2), Shard(1)}, whole, {{2, 2, 13, 11}, {2, 6, 3, 3}, {6}}, conv,
          /*keeps=*/false);
}

TEST_CASE("halo: second derivatives of a transposed convolution", "[ops][halo]") {
  const at::Tensor plain = at::randn({2, 3, 12, 5}, at::kDouble).requires_grad_();
  const at::Tensor kernel = at::randn({3, 2, 3, 3}, at::kDouble);
  const auto second = [&](const at::Tensor& t, const at::Tensor& weight) {
    const at::Tensor result = at::conv_transpose2d(t, weight, {}, 2, 1, 1);
    const at::Tensor sum = (result * result * result).sum();
    const at::Tensor first = torch::autograd::grad({sum}, {t}, {}, {}, /*create_graph=*/true)[0];
    return torch::autograd::grad({(first * first).sum()}, {t})[0];
  };
  const at::Tensor split = lay_out(plain, line(), {Shard(2)}).requires_grad_();
  const auto wrong = difference(second(split, lay_out(kernel, line(), {Replicate()})), second(plain, kernel));
  CHECK(wrong.value_or("") == "");
}

TEST_CASE("halo: a transposed convolution receives the elements that reach its parts", "[ops][halo]") {
  const DeviceMesh mesh(World::abstract(4), {4}, {"y"});
  const auto meta = [](const Ints& sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)); };
  const int64_t channels = 8, width = 2048;
  const Placements rows = {Shard(2)}, whole = {Replicate()};
  const at::Tensor image = distribute_tensor(meta({1, channels, 1024, width}), mesh, rows).requires_grad_();
  const at::Tensor seed = distribute_tensor(meta({1, 4, 2048, 2 * width}), mesh, rows);
  const auto weight = [&](int64_t kernel) {
    return distribute_tensor(meta({channels, 4, kernel, kernel}), mesh, whole).requires_grad_();
  };
  const at::Tensor blocks = weight(2), overlapping = weight(4);
  CommDebugMode comm;
  const at::Tensor by_blocks = at::conv_transpose2d(image, blocks, {}, 2);
  CHECK(comm.total() == 0);
  CHECK(DTensor(by_blocks).placements() == rows);
  by_blocks.backward(seed);
  CHECK(comm.count("all_reduce") == 1);  // of the weight's gradient
  CHECK(comm.total() == 1);

  comm.reset();
  const at::Tensor result = at::conv_transpose2d(image, overlapping, {}, 2, 1);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() == 2 * width * channels * 4);  // a row of each neighbour
  CHECK(DTensor(result).placements() == rows);
}

}  // namespace
}  // namespace dtensor::testing
