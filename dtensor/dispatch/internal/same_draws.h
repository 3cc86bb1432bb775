// Random operators that every rank runs by itself, and that must draw the same numbers on all.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace dtensor {

// Of one call. Generators are the process's, and each rank in turn would draw on.
class SameDraws {
 public:
  // Runs `call`, the operator `op` with the arguments on `stack` for a rank on `device`. An operator that takes a
  // generator gets one of its own; for others the default one is set back to where the first rank found it, which other
  // threads that draw meanwhile would notice.
  void run(const c10::OperatorHandle& op, c10::Device device, torch::jit::Stack& stack,
           const std::function<void()>& call);

 private:
  at::Generator drawn_;  // as the first rank found it
};

}  // namespace dtensor
