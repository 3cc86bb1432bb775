// Finds out whether the code of a composite operator computes, from the local tensors as they are, what the operator
// itself computes from them: if all calls in it do, with inputs that stay where they are.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace dtensor::internal {

// Of this thread, since it began. Calls that typed kernels compute, and composite operators decided as one, are as
// given.
struct InnerCalls {
  // Calls that moved or replaced an input, or computed otherwise than by the operator itself on the local tensors.
  uint64_t otherwise = 0;
  uint64_t continued = 0;  // by the present handler: calls that go on as if it were not there
};

inline thread_local InnerCalls inner_calls;

// For a piece of code of this thread: whether no call in it since the construction was computed otherwise.
class InnerCallsSince {
 public:
  bool are_as_given() const { return inner_calls.otherwise == before_; }

 private:
  const uint64_t before_ = inner_calls.otherwise;
};

// Around a handler. Its call was computed otherwise unless it went on exactly once.
class HandlerCall {
 public:
  HandlerCall() = default;
  ~HandlerCall() {
    if (inner_calls.continued != before_ + 1) ++inner_calls.otherwise;
    inner_calls.continued = before_;
  }
  HandlerCall(const HandlerCall&) = delete;
  HandlerCall& operator=(const HandlerCall&) = delete;

 private:
  const uint64_t before_ = inner_calls.continued;
};

// For a handler that goes on, or that computes what the operator itself computes from the local tensors. Not if it
// changes what the composite operator reads of the results.
inline void count_as_given() { ++inner_calls.continued; }
// For a call that is not as given.
inline void count_otherwise() { ++inner_calls.otherwise; }

// For handlers that go on to the composite operator's own code.
inline void run_composite_code(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  count_as_given();
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
}

}  // namespace dtensor::internal
