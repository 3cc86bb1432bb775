// Records one run of a step: the decision of each operator call, and the total cost.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/layout_plan.h"
#include "mesh/world.h"
#include "propagation/decision.h"
#include "propagation/op_call.h"
#include "propagation/propagate.h"

namespace dtensor::internal {

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
  std::optional<World> world;   // the given one, else that of the first decided call
  bool began_without = false;   // the step communicated or computed products before the world was known
  std::vector<int64_t> missed;  // calls with an override that did not fit: decided as usual
};

// Decisions that replace the usual ones, by call.
using Overrides = std::map<int64_t, LayoutPin>;

// The decision for `call` in which the inputs have the layouts of `pin`; null: there is none.
std::shared_ptr<const Decision> find_pinned(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                            const LayoutPin& pin);

// The placements of the inputs in which a decision computes.
std::vector<Placements> computed_placements(const Decision& decision);

// `world`: of the step, if it is known. Without it, the peak of the memory is that from the first decided call on.
RecordedStep record_step(const std::function<void()>& step, const Overrides& overrides,
                         const std::optional<World>& world = std::nullopt);

}  // namespace dtensor::internal
