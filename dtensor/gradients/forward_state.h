// What the operators of a part of forward depend on besides their inputs: kept in order to compute the part again in
// backward (activation_checkpoint.h).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor::internal {

// Of this thread, now: the scopes of operators with the module's path, autocast of CPU and CUDA, and the default random
// generators of the CPU and of the devices on which `inputs` have data. Not listeners, nor grad mode.
class ForwardState {
 public:
  explicit ForwardState(const std::vector<at::Tensor>& inputs);

  // Sets the state, and at the end the one before. On the thread that computes. The state must outlive it.
  class Guard {
   public:
    explicit Guard(const ForwardState& state);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };

 private:
  struct Autocast {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  static Autocast autocast_of(c10::DeviceType device);
  static void set(const Autocast& autocast);
  std::vector<at::Generator> copies_of_generators() const;
  void set_generators(const std::vector<at::Generator>& states) const;

  std::vector<at::Generator> generators_, generator_states_;
  std::vector<Autocast> autocast_;
  DispatchScope scope_;
  std::string module_path_;
};

}  // namespace dtensor::internal
