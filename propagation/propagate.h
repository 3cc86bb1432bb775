// Turns a call into a decision: the strategy, the redistributions of the inputs, and the results.
//
//   const OpCall call = OpCall::make("aten::mm", {a, b});  // specs: nothing is computed or sent
//   std::cout << propagate(call)->explain() << "\n";
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "propagation/decision.h"

namespace dtensor {

namespace internal {
struct SearchEffort;  // strategy_search.h
}  // namespace internal

// Decides by the operator's `rule`. Written inputs keep their layout.
// Errors, before anything is communicated: NotImplementedError if there is no rule or the output shape cannot be known;
// WrittenLayoutError; ValueError if no strategy keeps call.context.scope.limits.
std::shared_ptr<const Decision> propagate(const OpCall& call, std::shared_ptr<const OpRule> rule,
                                          internal::SearchEffort* effort = nullptr);
// The same for tests and tools, with the rule in the registry.
std::shared_ptr<const Decision> propagate(const OpCall& call);
std::shared_ptr<const Decision> propagate(const OpCall& call, internal::SearchEffort& effort);

// One way to compute a call, with its estimated time: the redistributions of its inputs, and the reductions that it
// defers.
struct PricedDecision {
  std::shared_ptr<const Decision> decision;
  double seconds = 0;
};

// The ways of the rule, at most `most`, cheapest first. Errors: as propagate(); empty if none fits.
std::vector<PricedDecision> propagate_all(const OpCall& call, std::shared_ptr<const OpRule> rule, size_t most);

namespace internal {

// The text of the error of an operator without a rule: what to do about it.
std::string missing_rule_text(const c10::OperatorHandle& op);

}  // namespace internal

}  // namespace dtensor
