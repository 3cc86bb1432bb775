// One record per input that an operator took from the cache of a tensor's memory.
#pragma once

#include <cstdint>
#include <string>

#include "comm/comm_event.h"

namespace dtensor::internal {

// Reported to the listeners of the current thread's scope that want it, when the input is taken, also if the operator
// then fails. The same on all ranks.
//
// Operators other than views take the reduced copy of a Partial input that they only read, if it is cached. So an
// operator is also reported that could have computed with the addends, without communicating. An input that was reduced
// and then gathered has two records, one for each copy.
struct ReuseEvent {
  CommCause cause;
  bool backward = false;
  // The collectives between the input's layout and that of the copy: "all_gather(tp)", "reduce_scatter(dp),
  // all_gather(tp)". Of what is no layout: what was taken, "sums", "margins" or "ghost region".
  std::string saved;
  int64_t bytes = 0;  // that one rank would receive by them, the one that receives most; 0 for sums: not known
};

}  // namespace dtensor::internal
