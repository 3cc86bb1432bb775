// How the addends on the Partial dims of a mesh combine to a value, for tests that make them.
#pragma once

#include <cstdint>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::testing {

// Where a rank stands among the addends of its value: row-major over the mesh dims that are Partial.
inline int64_t addend_index(const DeviceMesh& mesh, const Placements& placements, int64_t i) {
  int64_t index = 0;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (placements[d].is_partial()) index = index * mesh.size(d) + mesh.local_coordinate(i)[d];
  }
  return index;
}

struct PartialKind {
  int64_t addends = 1;
  ReduceOp op = ReduceOp::kSum;  // averages are sums of `divisor` times the addends
  int64_t divisor = 1;
};

inline PartialKind partial_kind(const DeviceMesh& mesh, const Placements& placements) {
  PartialKind kind;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (!placements[d].is_partial()) continue;
    kind.addends *= mesh.size(d);
    if (placements[d].reduce_op() == ReduceOp::kAvg) {
      kind.divisor *= mesh.size(d);
    } else {
      kind.op = placements[d].reduce_op();
    }
  }
  return kind;
}

}  // namespace dtensor::testing
