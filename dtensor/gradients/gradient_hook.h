// The type of hook that the library registers on leaves, to distinguish it from the user's hooks.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

namespace dtensor::internal {

// Redistributes gradients to their leaf's layout: gradient_layout.h.
class GradientHook : public torch::autograd::FunctionPreHook {
 public:
  static bool is_one(const torch::autograd::FunctionPreHook& hook) {
    return dynamic_cast<const GradientHook*>(&hook) != nullptr;
  }
};

}  // namespace dtensor::internal
