// Decides the calls of a step one by one, instead of the strategy cache: recordings, and pinned layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "propagation/decision.h"

namespace dtensor::internal {

// Set for a thread, and for autograd threads that run its backward, by DispatchScope::step_decider.
class StepDecider {
 public:
  virtual ~StepDecider() = default;
  // Announces the next call by the program or autograd; calls that operators make internally do not count. The same in
  // every layout.
  virtual void next() = 0;
  // Decides a call that follows its operator's rule. `usual`: the engine's own decision.
  virtual std::shared_ptr<const Decision> decide(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                                 const std::function<std::shared_ptr<const Decision>()>& usual) = 0;
  // The calls decided here, by number, that the collectives now running belong to, each with its share of the cost;
  // shares add up to 1. Empty: calls that were not decided here, or none. Code that runs a deferred call sets this for
  // that time.
  struct CostShare {
    size_t call;
    double share;
  };
  using CostShares = std::vector<CostShare>;
  virtual CostShares charged() const { return {}; }
  virtual void charge(CostShares) {}
  // Not 0: cached layouts from outside this recording are ignored, so that every recording of a step sees the same
  // communication. Unique per recording.
  virtual uint64_t recording() const { return 0; }
};

}  // namespace dtensor::internal
