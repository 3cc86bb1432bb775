// Random meshes, tensors and layouts for properties of plans.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/testing/plan_cases.h"
#include "tests/testing/property.h"

namespace dtensor {

// Sharded in every way, and Partial of several kinds, on tensors of `ndim` dims.
inline Placement draw_placement(int64_t ndim) {
  const int64_t kind = testing::draw(0, ndim == 0 ? 3 : 7);
  if (kind <= 1) return kind == 0 ? Replicate() : Partial();
  if (kind == 2) return Partial(testing::draw(0, 1) == 0 ? ReduceOp::kMax : ReduceOp::kAvg);
  if (kind == 3) return MaskPartial({10, 8}, 0);
  const int64_t dim = testing::draw(0, ndim - 1);
  return kind == 7 ? StridedShard(dim, testing::draw(1, 4)) : Shard(dim);
}

struct RandomTensor {
  DeviceMesh mesh;
  TensorMeta meta;

  explicit RandomTensor(int64_t largest_size = 13) {
    int64_t ranks = 1;
    std::vector<int64_t> shape;
    for (int64_t m = testing::draw(1, 3); m > 0; --m) {
      shape.push_back(testing::draw(1, std::min<int64_t>(4, 16 / ranks)));
      ranks *= shape.back();
    }
    mesh = mesh_of(shape);
    Shape sizes;
    for (int64_t d = testing::draw(0, 3); d > 0; --d) sizes.push_back(testing::draw(0, largest_size));
    meta = meta_of(sizes, testing::draw(0, 1) == 0 ? at::kFloat : at::kDouble);
    RC_LOG() << mesh.to_string() << ", tensor [" << absl::StrJoin(sizes, ", ") << "]" << std::endl;
  }

  Placements layout(const char* name) const {
    Placements placements;
    for (int64_t m = 0; m < mesh.ndim(); ++m)
      placements.push_back(draw_placement(static_cast<int64_t>(meta.sizes.size())));
    RC_LOG() << name << " " << to_string(placements) << std::endl;
    return placements;
  }
};

}  // namespace dtensor
