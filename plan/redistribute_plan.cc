#include "plan/redistribute_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace dtensor {

Collective RedistributeStep::collective() const {
  switch (kind) {
    case Kind::kAllReduce:
      return Collective::kAllReduce;
    case Kind::kReduceScatter:
      return Collective::kReduceScatter;
    case Kind::kAllGather:
      return Collective::kAllGather;
    case Kind::kPermute:
      return Collective::kPermute;
    case Kind::kAllToAll:
    case Kind::kTransfer:
      return Collective::kAllToAll;
    case Kind::kSlice:
    case Kind::kFill:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a local step has no collective");
}

int64_t RedistributePlan::num_collectives() const {
  int64_t n = 0;
  for (const RedistributeStep& step : steps) n += step.is_local() ? 0 : 1;
  return n;
}

void Route::add_up() {
  bytes = peak_bytes = 0;
  seconds = 0;
  for (const RedistributeStep& step : steps) {
    bytes += step.bytes;
    seconds += step.seconds;
    peak_bytes = std::max(peak_bytes, step.peak_bytes);
  }
}

}  // namespace dtensor
