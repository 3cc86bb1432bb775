// A gradient that waits in a bucket for its reduction, from its arrival to the reduced .grad, or back to the state
// before.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dtensor::internal {

struct WaitingGradient {
  at::Tensor leaf;
  bool had_gradient = false;  // before this backward
  at::Tensor put_aside = {};  // that gradient, if the present one is to be added to it
  // Of a reduction under way: the unreduced .grad from before this backward, and the sum that has replaced .grad.
  at::Tensor unreduced = {}, sum = {};
};
using WaitingGradients = std::vector<WaitingGradient>;

// Begins to reduce those of one bucket; `async`: as ReduceOptions::async. Error: nothing has changed.
void begin_to_reduce(WaitingGradients& waiting, bool async);
// Waits until they are reduced, without another effect. Errors: those of the collective.
void wait_until_reduced(const WaitingGradients& waiting);
// Gives each .grad its memory with the sum. REQUIRES: wait_until_reduced() has succeeded.
void take_sums(const WaitingGradients& waiting);
// Restores each .grad to its state before the backward; one that was Partial already may keep additions. Communicates
// nothing, and waits for nothing.
void undo(const WaitingGradients& waiting);

}  // namespace dtensor::internal
