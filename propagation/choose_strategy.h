// Chooses the strategy of a rule for a call: the cheapest of those that the call may take.
#pragma once

#include <utility>
#include <vector>

#include "propagation/op_rule.h"
#include "propagation/strategy_search.h"

namespace dtensor::internal {

// Errors: none fits (WrittenLayoutError if that is for a tensor that the operator writes to); a strategy of the rule
// that does not fit this operator (c10::Error). If no strategy stays within problem.limits, returns the best without
// that limit.
Strategy choose_strategy(const Problem& problem, const OpRule& rule, SearchEffort& effort);

// All strategies that the call may take, at most `most`, cheapest first. Regards the first 4096 combinations of the
// mesh dims' strategies.
std::vector<std::pair<Strategy, Score>> ranked_strategies(const Problem& problem, const OpRule& rule, size_t most);

}  // namespace dtensor::internal
