#include "propagation/cost_model.h"

namespace dtensor {
namespace {

int64_t ceil_log2(int64_t n) {
  int64_t steps = 0;
  for (int64_t reach = 1; reach < n; reach *= 2) ++steps;
  return steps;
}

}  // namespace

double CostModel::collective(Collective kind, int64_t group_size, int64_t bytes) const {
  if (group_size <= 1) return 0;
  int64_t hops = ceil_log2(group_size);
  if (kind == Collective::kAllReduce) hops *= 2;  // up and down
  if (kind == Collective::kPermute) hops = 1;
  return base_latency + static_cast<double>(hops) * hop_latency + static_cast<double>(bytes) / bandwidth;
}

}  // namespace dtensor
