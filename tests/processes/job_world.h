// The world of a test that runs in several processes, one rank each.
#pragma once

#include "mesh/world.h"

namespace dtensor {

// Over all processes of the launcher; made once per process, destroyed when the process ends.
inline const World& job_world() {
  static const World world = World::from_env();
  return world;
}

// The rank of this process.
inline int64_t own_rank() { return job_world().owned_ranks().front(); }

// The same ranks, all in this process: a job's results must equal these bit for bit.
inline World twin_world() { return World::local(job_world().size()); }

}  // namespace dtensor
