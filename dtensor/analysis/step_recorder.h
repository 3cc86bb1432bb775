// One run of a step: what each call of an operator was decided to be, and what all took. Internal to
// optimize_layouts().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/layout_plan.h"
#include "propagation/decision.h"
#include "propagation/op_call.h"
#include "propagation/propagate.h"

namespace dtensor {

struct RecordedCall {
  int64_t index = 0;  // LayoutPin::call
  OpCall call;
  std::shared_ptr<const OpRule> rule;
  std::shared_ptr<const Decision> decision;
  std::string module_path;
  double seconds = 0;  // of the collectives that it ran
};

struct RecordedStep {
  std::vector<RecordedCall> calls;  // those that the engine decided by rules
  StepCost cost;
  std::vector<int64_t> missed;  // calls with an override that did not fit: they were decided as usual
};

// Decisions other than usual, by call.
using Overrides = std::map<int64_t, LayoutPin>;

// Of all ways to compute `call`, the one in which the inputs lie as `pin` says; null: it has none.
std::shared_ptr<const Decision> find_pinned(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                            const LayoutPin& pin);

// Placements of the inputs that a decision computes on.
std::vector<Placements> computed_placements(const Decision& decision);

RecordedStep record_step(const std::function<void()>& step, const Overrides& overrides);

}  // namespace dtensor
