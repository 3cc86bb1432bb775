// A rank's current activity, for the others' errors.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::internal {

// "all_reduce over tp for aten::mm", the n-th of its group.
struct Activity {
  std::string group;  // equal on all its members
  int64_t sequence = 0;
  std::string what;
};

}  // namespace dtensor::internal
