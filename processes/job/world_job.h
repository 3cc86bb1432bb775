// The job to which the ranks of a world belong, for what goes past its communicator. An attachment of worlds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "processes/job/job.h"

namespace dtensor::internal {

struct WorldJob {
  std::weak_ptr<Job> job;  // of the communicator; empty in worlds that are not of processes
  std::mutex mutex;
  std::map<std::string, int64_t> barriers;  // by ranks, how many monitored ones there were. Guarded by mutex
};

}  // namespace dtensor::internal
