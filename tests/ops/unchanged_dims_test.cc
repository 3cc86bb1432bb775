// Dims that an operator leaves as they are while it changes others, or that it cuts at the borders of blocks: they stay
// sharded, and nothing moves.
#include <ATen/ops/reflection_pad1d.h>
#include <ATen/ops/reflection_pad2d.h>
#include <ATen/ops/reflection_pad3d.h>
#include <ATen/ops/replication_pad1d.h>
#include <ATen/ops/replication_pad2d.h>
#include <ATen/ops/replication_pad3d.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_trilinear3d.h>

#include <vector>

#include "tests/ops/silent_compare.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::testing {
namespace {

using at::Tensor;
using Ints = std::vector<int64_t>;

struct ImageCase {
  const char* name;
  OneToOne fn;
  int64_t dim;  // which stays as it is
  Ints sizes;
  bool takes_strided = false;
};

std::vector<ImageCase> image_cases() {
  using T = const Tensor&;
  const Ints lines = {2, 3, 12}, images = {2, 3, 12, 5}, volumes = {2, 2, 12, 3, 4};
  return {
      {"reflection_pad1d",
       [](T x) {
         return at::reflection_pad1d(x, {0, 0});
       },
       2, lines, true},
      {"reflection_pad2d",
       [](T x) {
         return at::reflection_pad2d(x, {0, 0, 0, 0});
       },
       3, images, true},
      {"reflection_pad2d of columns",
       [](T x) {
         return at::reflection_pad2d(x, {1, 2, 0, 0});
       },
       2, images, true},
      {"reflection_pad3d",
       [](T x) {
         return at::reflection_pad3d(x, {0, 1, 2, 0, 0, 0});
       },
       2, volumes, true},
      {"replication_pad1d",
       [](T x) {
         return at::replication_pad1d(x, {0, 0});
       },
       2, lines, true},
      {"replication_pad2d",
       [](T x) {
         return at::replication_pad2d(x, {0, 0, 0, 0});
       },
       2, images, true},
      {"replication_pad2d of rows",
       [](T x) {
         return at::replication_pad2d(x, {0, 0, 4, 1});
       },
       3, images, true},
      {"replication_pad3d",
       [](T x) {
         return at::replication_pad3d(x, {0, 0, 0, 3, 1, 0});
       },
       4, volumes, true},
      {"upsample_linear1d", [](T x) { return at::upsample_linear1d(x, at::IntArrayRef{12}, false); }, 2, lines},
      {"upsample_bilinear2d",
       [](T x) {
         return at::upsample_bilinear2d(x, {12, 11}, false);
       },
       2, images},
      {"upsample_bilinear2d, aligned",
       [](T x) {
         return at::upsample_bilinear2d(x, {12, 11}, true);
       },
       2, images},
      {"upsample_bicubic2d",
       [](T x) {
         return at::upsample_bicubic2d(x, {7, 5}, false);
       },
       3, images},
      {"upsample_trilinear3d",
       [](T x) {
         return at::upsample_trilinear3d(x, {12, 5, 4}, true);
       },
       2, volumes},
  };
}

TEST_CASE("nothing moves along dims that padding, or interpolation, leaves as they are", "[ops][halo]") {
  for (const ImageCase& c : image_cases()) {
    CAPTURE(c.name);
    const std::vector<MeshLayout> layouts = {{{4}, {Shard(c.dim)}},
                                             {{5}, {Shard(c.dim)}},
                                             {{2, 2}, {Shard(c.dim), Shard(c.dim)}},
                                             {{2, 2}, {Shard(1), Shard(c.dim)}}};
    for (const MeshLayout& layout : layouts) compare_silently(c.fn, layout, c.sizes, true);
    compare_silently(c.fn, {{1, 3}, {Shard(0), Shard(c.dim)}}, c.sizes, false);
    if (c.takes_strided) compare_silently(c.fn, {{3}, {StridedShard(c.dim, 2)}}, c.sizes, true);
  }
}

TEST_CASE("nothing moves: pieces of whole blocks, and of none", "[ops]") {
  const MeshLayout blocks{{3}, {StridedShard(0, 4)}};
  for (const int64_t piece : {0, 1, 2}) {
    compare_silently([&](const Tensor& x) { return x.split_with_sizes({3, 0, 9}, 0)[piece]; }, blocks, {12, 5}, false);
    compare_silently([&](const Tensor& x) { return x.tensor_split({3, 3}, 0)[piece]; }, blocks, {12, 5}, false);
  }
}

TEST_CASE("nothing moves: windows of a single number", "[ops]") {
  const MeshLayout layout{{2}, {Replicate()}};
  for (const int64_t size : {0, 1}) {
    compare_silently([&](const Tensor& x) { return x.unfold(0, size, 2); }, layout, {}, false);
  }
}

}  // namespace
}  // namespace dtensor::testing
