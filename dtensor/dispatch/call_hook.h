// Functions that deferred gradients (deferral/deferred_gradients.h) have called around operators.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/rank_tensors.h"

namespace dtensor {
struct Decision;  // propagation/decision.h
}  // namespace dtensor

namespace dtensor::internal {

struct Inputs;        // internal/call_inputs.h
struct LocalStorage;  // tensor/local_storage.h
struct OpInfo;        // op_info.h

class CallHook {
 public:
  virtual ~CallHook() = default;

  // A decided call, inside backward, whose result is the gradient of `leaf`. `run` computes the results from the local
  // tensors of the inputs, in the layouts of the decision.
  struct GradientCall {
    const OpInfo& info;
    const Inputs& in;
    c10::ArrayRef<c10::IValue> args;
    std::shared_ptr<const Decision> decision;
    const at::Tensor& leaf;
    std::function<std::vector<RankTensors>(const Inputs& in, c10::ArrayRef<c10::IValue> args,
                                           const std::vector<RankTensors>& locals)>
        run;
  };
  // The result, if `call.run` is to be called later; undefined: now.
  virtual at::Tensor defer(const GradientCall& call) = 0;

  // Before a call that may write to its arguments. If the result is not empty, call it after the operator has run;
  // otherwise destroy it.
  virtual std::function<void()> before_call(const OpInfo& info, c10::ArrayRef<c10::IValue> args) = 0;
  // Before other writes to `t`.
  virtual void before_write(const at::Tensor& t) = 0;
  // Before the user gets local tensors in that memory, to write to them at any time.
  virtual void before_unseen_writes(const LocalStorage& memory) = 0;

  inline static CallHook* registered = nullptr;        // since the library was loaded
  inline static std::atomic<int64_t> num_watching{0};  // the other three need not be called while it is 0
  static CallHook* watching() { return num_watching.load(std::memory_order_relaxed) > 0 ? registered : nullptr; }
};

}  // namespace dtensor::internal
