// Whether an operator that moves elements along dims exchanges halos or does what its rule says: whichever takes less
// time, by the cost model. Internal to ops/.
//
// The decision follows from specs and arguments alone, so it is the same on every rank, and is remembered per world
// like those of rules.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/halo/plan.h"
#include "propagation/decision.h"

namespace dtensor {

struct HaloDecision {
  std::shared_ptr<const HaloPlan> plan;   // null: by the rule
  SpecPtr result;                         // of the operator's first result
  std::shared_ptr<const HaloPlan> both;   // of HaloChoice::both; null: not worth it
  std::shared_ptr<const HaloPlan> later;  // of HaloChoice::later; null: there is none
};

// What would be exchanged; nullopt: that cannot be said of this call. `rule`: what the rule would do, null if there is
// none.
struct HaloChoice {
  HaloRequest request;
  SpecPtr result;           // of the operator's first result
  double more_seconds = 0;  // what else has to move for it
  double flops = 0;         // of a rank's matrix products
  // What neighbours on the other side would have besides, and another call may ask for next. Fetched in the place of
  // `request` where it takes little longer.
  std::optional<HaloRequest> both = std::nullopt;
  // What is likely to be asked for of the result, which is fetched then.
  std::optional<HaloRequest> later = std::nullopt;
};
using HaloChooser = std::function<std::optional<HaloChoice>(const Decision* rule)>;

// `stack`: the call's arguments on top. `choose` is asked once per kind of call.
// Errors: those of the rule, and of a frozen strategy cache.
std::shared_ptr<const HaloDecision> decide_halo(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                                const HaloChooser& choose);

// The layout of what is computed of addends: MaskPartials are Partials from then on.
Placements as_addends(Placements placements);
// Have any of the placements, which are not sharded there, addends of another kind than sums and averages?
bool has_nonlinear_partial(const Placements& placements);

CommCause halo_cause(const c10::OperatorHandle& op, const at::Tensor& t, const char* argument);

}  // namespace dtensor
