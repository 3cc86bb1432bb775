// From a call to a decision: which strategy, which redistributions first, what comes out.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <string>

#include "propagation/decision.h"

namespace dtensor {

struct SearchEffort;  // strategy_search.h

// An in-place or out= operator would have to change the layout of what it writes to.
struct WrittenLayoutError : c10::Error {
  using c10::Error::Error;
};

// Decides. Inputs that an operator writes to keep their layout.
// Errors, before anything is communicated: NotImplementedError if the operator has no rule or its output shape cannot
// be known; WrittenLayoutError.
std::shared_ptr<const Decision> propagate(const OpCall& call);
// The same for tests and tools.
std::shared_ptr<const Decision> propagate(const OpCall& call, SearchEffort& effort);

// The text of the error of an operator without a rule: what to do about it.
std::string missing_rule_text(const c10::OperatorHandle& op);

}  // namespace dtensor
