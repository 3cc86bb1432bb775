// The call that dispatch() computes on this thread, and the StepDecider of the scope, which decides such calls.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <functional>

#include "dtensor/dispatch/call_hook.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/step_decider.h"

namespace dtensor::internal {

// Guard: dispatch() has begun a call. Tells the StepDecider and the CallHook.
class CallInProgress {
 public:
  CallInProgress(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
    StepDecider* decider = step_decider();
    if (decider != nullptr) decider->next();
    if (CallHook* hook = CallHook::watching()) when_done_ = hook->before_call(info, args);
  }
  // Once it has its results. Not called: it has failed.
  void done() const {
    if (when_done_) when_done_();
  }

  // Whether one is in progress on this thread.
  static bool any() { return depth > 0; }
  // What decides the innermost one; null: this library. Calls that operators make inside are never decided by others.
  static StepDecider* step_decider() { return depth == 1 ? current_dispatch_scope().step_decider : nullptr; }

 private:
  inline static thread_local int depth = 0;
  struct Level {
    Level() { ++depth; }
    ~Level() { --depth; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
  };
  const Level level_;
  std::function<void()> when_done_;
};

}  // namespace dtensor::internal
