// Ranks of this process, or abstract ones, in one mesh dim.
#pragma once

#include "mesh/device_mesh.h"
#include "mesh/world.h"

namespace dtensor::testing {

inline DeviceMesh line_of_ranks(int64_t ranks, bool abstract = false) {
  return DeviceMesh(abstract ? World::abstract(ranks) : World::local(ranks), {ranks}, {"tp"});
}

}  // namespace dtensor::testing
