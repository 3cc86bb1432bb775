// How a redistribution is done, beside what it gives.
//
//   redistribute(t, {Replicate()}, {.max_bytes = 64 << 20});  // in rounds, if it must be
#pragma once

#include <cstdint>
#include <limits>

namespace dtensor {

struct RedistributeOptions {
  // Return while the last collective is under way; see redistribute().
  bool async_op = false;
  // Bytes alive at once on a rank, no more: the source's part, the result's and what lies between, as
  // RedistributePlan::peak_bytes counts them. The planner takes another route, or sends in several rounds. Greater than
  // 0, and the same on every rank, as it decides what is sent; under a RedistributeMemoryLimit (scopes.h) the smaller
  // one holds. The gradient comes back within it, too.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
};

}  // namespace dtensor
