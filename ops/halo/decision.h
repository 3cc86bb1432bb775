// Decides whether an operator that moves elements along dims exchanges halos or follows its rule: the one that takes
// less time by the cost model.
//
// The decision follows from specs, arguments, declared ghost widths and the hints of the scope (ScopeHints) alone, so
// it is the same on every rank, and is cached per world like the decisions of rules.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ops/halo/declared_region.h"
#include "ops/halo/plan.h"
#include "propagation/decision.h"

namespace dtensor::internal {

struct HaloDecision {
  std::shared_ptr<const HaloPlan> plan;   // null: follow the rule
  SpecPtr result;                         // of the operator's first result
  std::shared_ptr<const HaloPlan> both;   // plan for HaloChoice::both; null: not worth it
  std::shared_ptr<const HaloPlan> later;  // plan for HaloChoice::later; null: none

  // The ghost region that was declared for the tensor, if it has what `plan` fetches, or `later` if there is one; else
  // null.
  std::shared_ptr<const DeclaredRegion> declared;
  std::shared_ptr<const HaloPlan> within;  // what `plan` fetches, from the boxes of `declared`; null: they lack an
                                           // element, or a limit is exceeded
  std::shared_ptr<const HaloPlan> later_within;  // the same for `later`
};

// The possible exchange; nullopt: halos cannot serve this call. `rule`: the rule's decision, null if there is none.
struct HaloChoice {
  HaloRequest request;
  SpecPtr result;           // of the operator's first result
  double more_seconds = 0;  // time to move other inputs for it
  double flops = 0;         // of a rank's matrix products
  // A request that also covers the neighbours on the other side, for which another call is likely to ask next. Fetched
  // instead of `request` where it takes little longer.
  std::optional<HaloRequest> both = std::nullopt;
  // A likely later request for elements of the result, fetched at that time.
  std::optional<HaloRequest> later = std::nullopt;
};
using HaloChooser = std::function<std::optional<HaloChoice>(const Decision* rule)>;

// `stack`: the call's arguments on top. `choose` is called once per kind of call, and once more
// per declared width. `source`: the tensor whose halo is
// fetched. If its declared ghost width (dtensor/ghost_width.h) has the halo, the declaration decides, not the price.
// Undefined: a gradient, whose halo is sent back.
// Errors: those of the rule, and of a frozen strategy cache, of which a declared width needs no entry.
std::shared_ptr<const HaloDecision> decide_halo(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                                const at::Tensor& source, const HaloChooser& choose);

}  // namespace dtensor::internal
