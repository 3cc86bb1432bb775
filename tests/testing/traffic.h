// What one rank communicates while a function runs.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

#include "observe/comm_debug_mode.h"

namespace dtensor::testing {

struct Traffic {
  int64_t calls = 0;  // collectives
  int64_t bytes = 0;  // that the rank receives
  friend bool operator==(const Traffic&, const Traffic&) = default;
  friend std::ostream& operator<<(std::ostream& os, const Traffic& t) {
    return os << t.calls << " calls, " << t.bytes << " B";
  }
};

template <typename F>
Traffic traffic(const F& f) {
  CommDebugMode comm;
  f();
  return {comm.total(), comm.bytes()};
}

// Collectives by name, such as {"all_gather", 2}.
using Counts = std::map<std::string, int64_t>;

inline Counts counts_of(const CommDebugMode& comm) {
  Counts counts;
  for (const auto& [name, n] : comm.counts()) counts[std::string(name)] = n;
  return counts;
}

}  // namespace dtensor::testing
