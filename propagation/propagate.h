// From a call to a decision: which strategy, which redistributions first, what comes out.
//
//   const OpCall call = OpCall::make("aten::mm", {a, b});  // specs: nothing is computed or sent
//   std::cout << propagate(call)->explain(call) << "\n";
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "propagation/decision.h"

namespace dtensor {

struct SearchEffort;  // strategy_search.h

// Decides by the operator's `rule`. Inputs that an operator writes to keep their layout.
// Errors, before anything is communicated: NotImplementedError if there is no rule or the output shape cannot be known;
// WrittenLayoutError; ValueError if no strategy keeps call.context.limits.
std::shared_ptr<const Decision> propagate(const OpCall& call, std::shared_ptr<const OpRule> rule,
                                          SearchEffort* effort = nullptr);
// The same for tests and tools, by the rule that the registry has.
std::shared_ptr<const Decision> propagate(const OpCall& call);
std::shared_ptr<const Decision> propagate(const OpCall& call, SearchEffort& effort);

// A way to compute a call, and what it is estimated to take: the redistributions of its inputs, and the reductions that
// it puts off for them.
struct PricedDecision {
  std::shared_ptr<const Decision> decision;
  double seconds = 0;
};

// The ways that the rule has, at most `most`, the cheapest first. Errors: as propagate(); empty where none fits.
std::vector<PricedDecision> propagate_all(const OpCall& call, std::shared_ptr<const OpRule> rule, size_t most);

// The text of the error of an operator without a rule: what to do about it.
std::string missing_rule_text(const c10::OperatorHandle& op);

}  // namespace dtensor
