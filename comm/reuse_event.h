// One record per input that an operator took from the cache of a tensor's memory, instead of communicating.
#pragma once

#include <cstdint>
#include <string>

#include "comm/comm_event.h"

namespace dtensor::internal {

// Reported to the listeners of the current thread's scope when the input is taken, also if the operator then fails. The
// same on all ranks.
struct ReuseEvent {
  CommCause cause;
  bool backward = false;
  // The collectives that were not needed: "all_gather(tp)", "reduce_scatter(dp), all_gather(tp)". Of what is no layout:
  // what was taken, "sums", "margins" or "ghost region".
  std::string saved;
  int64_t bytes = 0;  // that one rank would have received, the one that receives most; 0 for sums: not known
};

}  // namespace dtensor::internal
