// A table of the activities of a running job's ranks, with the rank that differs marked.
#pragma once

#include <map>
#include <string>

#include "tools/flight/attach.h"

namespace dtensor::tools {

struct LiveReport {
  std::string text;
  bool healthy = true;  // all ranks of this host answer, and none holds up the others
};

// `gpu_bytes`: by process. `last`: how many calls of each group to show.
LiveReport describe_live_job(const LiveJob& job, const std::map<int64_t, int64_t>& gpu_bytes, int64_t last);

}  // namespace dtensor::tools
