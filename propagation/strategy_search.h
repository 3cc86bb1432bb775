// Searches for the cheapest strategy of an operator, or one near it.
//
// The strategies of the mesh dims combine freely, so their number is exponential in the mesh dims. If there are few,
// all are priced. Otherwise a local search starts from some (each input's layout followed; as few changes as possible;
// everything replicated), changes the strategy of one mesh dim, then of two, while that is cheaper. Its effort is
// limited by counts, not by time, so that every rank finds the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor::internal {

// The allowed effort of a search, and the effort it took.
struct SearchEffort {
  int64_t every = 0;    // all combinations, if they are no more than this. 0: the default
  int64_t priced = 0;   // priced combinations
  int64_t planned = 0;  // redistributions planned for it
  double seconds = 0;   // estimated time of the chosen one
};

// The best combination of `options`, the strategies of each mesh dim, best first where costs are equal. nullopt: none
// fits.
std::optional<Strategy> best_combination(const Problem& problem, std::vector<std::vector<DimStrategy>> options,
                                         SearchEffort& effort);

}  // namespace dtensor::internal
