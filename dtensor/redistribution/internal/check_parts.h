// from_local's run_check: whether the local tensors of all ranks make one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "placement/geometry.h"
#include "placement/placement.h"

namespace dtensor::internal {

// Global shape of parts that follow the chunk rule: along each dim the sizes of the ranks that differ only in the mesh
// dims sharding it add up. `ranks`: all of one copy of the mesh, `sizes`: of their parts. Does not check the rule.
Shape add_up(const std::vector<Shape>& sizes, absl::Span<const int64_t> ranks, const DeviceMesh& mesh,
             const Placements& placements);

// The same where all ranks have parts as large as `part`.
Shape scaled_up(Shape part, const DeviceMesh& mesh, const Placements& placements);

// The fault of a rank's local tensor by itself, "" if there is none.
std::string error_of_part(const at::Tensor& local, int64_t rank, const DeviceMesh& mesh);

// The arguments that one process passes to from_local.
struct PassedParts {
  const std::vector<at::Tensor>& locals;  // one per mesh.local_ranks(), at least one
  const Placements& placements;           // normalised
  const std::optional<std::vector<int64_t>>& shape;
  std::string error;  // a fault found already, naming the rank; reported to the others
};

// Compares the arguments of all ranks, other processes' by one all_gather, and returns the global shape. Error
// (c10::ValueError), equal on all ranks: one of them has an error, dtypes, numbers of dims, placements or global shapes
// differ, parts do not follow the chunk rule, or replicas differ in some bit. In World::fake, compares this process's
// ranks only.
Shape check_parts(const PassedParts& passed, const DeviceMesh& mesh);

}  // namespace dtensor::internal
