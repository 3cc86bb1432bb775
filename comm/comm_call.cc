#include "comm/comm_call.h"

namespace dtensor::internal {

RankSlots::RankSlots(absl::Span<const int64_t> ranks, int64_t world_size) : size_(static_cast<int64_t>(ranks.size())) {
  if (ranks.empty()) return;
  first_ = ranks[0];
  for (int64_t i = 0; i < size_; ++i) {
    if (ranks[i] == first_ + i) continue;
    slots_.assign(world_size, -1);
    for (int64_t k = 0; k < size_; ++k) slots_[ranks[k]] = k;
    return;
  }
}

}  // namespace dtensor::internal
