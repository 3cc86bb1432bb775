// Resource limits of a redistribution. search/step_pricer.h keeps the steps of one mesh within them, in rounds where it
// must, and transfer/transfer_planner.h those between two meshes.
#pragma once

#include <cstdint>
#include <limits>

namespace dtensor {

struct Limits {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t max_bytes = kNone;  // on a rank, as RedistributePlan::peak_bytes

  bool any() const { return max_bytes != kNone; }
};

}  // namespace dtensor
