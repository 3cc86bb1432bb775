// Who decides the calls of a step one by one, instead of the strategy cache: recordings, and pinned layouts. For the
// folders above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "propagation/decision.h"

namespace dtensor {

// Set for a thread, and for autograd's threads that work for it, by DispatchScope::call_sites.
class CallSites {
 public:
  virtual ~CallSites() = default;
  // The next call that the program or autograd makes begins; not those that operators make of each other. The same in
  // every layout.
  virtual void next() = 0;
  // It is to be decided as the operator's rule has it. `usual`: what is done else.
  virtual std::shared_ptr<const Decision> decide(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                                 const std::function<std::shared_ptr<const Decision>()>& usual) = 0;
  // Calls that were decided here, by number, and what each has to do with the collectives that run now: 1 in all. None:
  // a call that was not decided here, or none at all. Who computes later what was decided before says so meanwhile.
  struct Share {
    size_t call;
    double share;
  };
  using Shares = std::vector<Share>;
  virtual Shares charged() const { return {}; }
  virtual void charge(Shares) {}
  // Not 0: what was moved before or beside this recording does not count as moved, so that one of a step is like
  // another. A number of its own.
  virtual uint64_t recording() const { return 0; }
};

}  // namespace dtensor
