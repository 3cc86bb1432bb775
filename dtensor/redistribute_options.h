// Options for how a redistribution is done.
//
//   redistribute(t, {Replicate()}, {.max_bytes = 64 << 20});  // in rounds, if it must be
#pragma once

#include <cstdint>
#include <limits>

namespace dtensor {

struct RedistributeOptions {
  // Return while the last collective is under way; see redistribute().
  bool async_op = false;
  // Limit for the bytes alive at once on a rank: the source's part, the result's and intermediate tensors, as
  // RedistributePlan::peak_bytes counts them. The planner takes another route, or sends in several rounds. Must be
  // greater than 0 and the same on every rank, as it decides what is sent; under a RedistributeMemoryLimit (scopes.h)
  // the smaller one applies. Applies to the gradient, too.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
};

}  // namespace dtensor
