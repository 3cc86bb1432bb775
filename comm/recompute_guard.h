// Marks that this thread computes a part of forward again, inside backward: in_backward() (scope.h) is false there.
#pragma once

#include <cstdint>

namespace dtensor::internal {

class RecomputeGuard {
 public:
  RecomputeGuard();
  ~RecomputeGuard();
  RecomputeGuard(const RecomputeGuard&) = delete;
  RecomputeGuard& operator=(const RecomputeGuard&) = delete;

 private:
  int64_t before_;
};

}  // namespace dtensor::internal
