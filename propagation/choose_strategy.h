// Which of a rule's strategies a call is computed with: those that it may take, and the cheapest of them. Internal to
// propagate().
#pragma once

#include <utility>
#include <vector>

#include "propagation/op_rule.h"
#include "propagation/strategy_search.h"

namespace dtensor {

// Errors: none fits (WrittenLayoutError if that is for a tensor that the operator writes to); a strategy of the rule
// that is none of this operator (c10::Error). Where no strategy keeps problem.limits, the best without that limit.
Strategy choose_strategy(const Problem& problem, const OpRule& rule, SearchEffort& effort);

// All strategies that the call may take, at most `most`, the cheapest first. Of combinations of the mesh dims'
// strategies the first 4096 are looked at.
std::vector<std::pair<Strategy, Score>> ranked_strategies(const Problem& problem, const OpRule& rule, size_t most);

}  // namespace dtensor
