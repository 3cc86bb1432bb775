// Random operators that every rank runs locally as a whole, and that must draw the same numbers on all ranks of this
// process. Random operators on sharded tensors are in ops/random/random.h.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace dtensor::internal {

// For one call. Generators belong to the process, so that its ranks, run one after another, would draw different
// numbers.
class RewindGenerator {
 public:
  // Runs `call`, the operator `op` with the arguments on `stack` for a rank on `device`. An operator that takes a
  // generator gets a copy; for others the default generator is reset to its state before the first rank, which affects
  // other threads that draw meanwhile.
  void run(const c10::OperatorHandle& op, c10::Device device, torch::jit::Stack& stack,
           const std::function<void()>& call);

 private:
  at::Generator drawn_;  // its state before the first rank
};

}  // namespace dtensor::internal
