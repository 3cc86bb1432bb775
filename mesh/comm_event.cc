#include "mesh/comm_event.h"

namespace dtensor {

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
