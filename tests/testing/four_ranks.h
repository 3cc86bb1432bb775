// The world of tests that run with four ranks in one process, and with the same cases in four processes
// (//tests/processes).
#pragma once

#include <cstdlib>

#include "mesh/world.h"

namespace dtensor::testing {

// Whether this process is one rank of a job.
inline bool is_job() { return std::getenv("WORLD_SIZE") != nullptr; }

// Four ranks of this process, or those of the job.
inline const World& four_ranks() {
  static const World world = is_job() ? World::from_env() : World::local(4);
  return world;
}

}  // namespace dtensor::testing
