// What every pattern may communicate: the one table to tighten where the library does better than it did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor {

// At scale 1; written by `./bazelw run //benchmarks/patterns -- --scale 1 --budgets`.
struct PatternBudget {
  std::string name, mesh, phase;
  int64_t calls, bytes;  // at most
};

const std::vector<PatternBudget>& pattern_budgets();

}  // namespace dtensor
