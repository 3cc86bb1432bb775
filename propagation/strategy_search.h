// Which strategy an operator is computed with: the cheapest, or near it. Internal to propagate().
//
// The strategies of the mesh dims combine freely, so there are as many as a number to the power of the mesh dims. While
// these are few, all are looked at. Else the search starts from some (each input's layout followed; as little changed
// as possible; everything replicated), changes the strategy of one mesh dim, then of two, wherever that is cheaper, and
// ends where nothing is. It counts, and looks at no clock: every rank finds the same.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor {

// How long a search may take, and what one took.
struct SearchEffort {
  int64_t every = 0;    // all combinations, if they are no more than this. 0: as is usual
  int64_t priced = 0;   // combinations looked at
  int64_t planned = 0;  // redistributions planned for that
  double seconds = 0;   // what the chosen one is estimated to take
};

// The best combination of `options`, the strategies of each mesh dim, best first where costs are equal. nullopt: none
// fits.
std::optional<Strategy> best_combination(const Problem& problem, std::vector<std::vector<DimStrategy>> options,
                                         SearchEffort& effort);

}  // namespace dtensor
