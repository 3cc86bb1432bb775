// Which indices of a dim each rank holds, by the rank's position along the mesh dims that cut the dim. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor::internal {

// The rank's position along the mesh dims that cut `dim`: 0 if none does.
int64_t place_of(const Spec& spec, int64_t dim, int64_t rank);

// The indices of `dim` that the rank at each position holds. Nullopt: a rank holds none, or several runs.
std::optional<std::vector<Run>> runs_along(const Spec& spec, int64_t dim);

inline int64_t end_of(const Run& run) { return run.begin + run.size; }
inline bool contains(const Run& outer, const Run& inner) {
  return outer.begin <= inner.begin && end_of(inner) <= end_of(outer);
}
bool contain(const std::vector<Run>& outer, const std::vector<Run>& inner);  // compared position by position
Run hull_of(const Run& a, const Run& b);

}  // namespace dtensor::internal
