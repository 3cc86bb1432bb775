// Marks that this thread computes a part of forward again, inside backward: in_backward() (scope.h) is false there.
#pragma once

#include <cstdint>

namespace dtensor::internal {

class ForwardAgainGuard {
 public:
  ForwardAgainGuard();
  ~ForwardAgainGuard();
  ForwardAgainGuard(const ForwardAgainGuard&) = delete;
  ForwardAgainGuard& operator=(const ForwardAgainGuard&) = delete;

 private:
  int64_t before_;
};

}  // namespace dtensor::internal
