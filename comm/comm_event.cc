#include "comm/comm_event.h"

#include <atomic>

namespace dtensor {
namespace {

std::array<std::atomic<int64_t>, kNumCollectives> issued;

}  // namespace

CollectiveCounts collectives_issued() {
  CollectiveCounts counts;
  for (size_t c = 0; c < counts.size(); ++c) counts[c] = issued[c].load(std::memory_order_relaxed);
  return counts;
}

namespace internal {

void count_collective(Collective c) { issued[static_cast<size_t>(c)].fetch_add(1, std::memory_order_relaxed); }

}  // namespace internal

std::string_view to_string(Collective c) {
  switch (c) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kScatter:
      return "scatter";
    case Collective::kGather:
      return "gather";
    case Collective::kPermute:
      return "permute";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

}  // namespace dtensor
