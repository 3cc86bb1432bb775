// Finds out whether the code of a composite operator computes, from the local tensors as they are, what the operator
// itself computes from them: if all calls in it do, with inputs that stay where they are.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace dtensor::internal {

// Of this thread, since it began. Calls that typed kernels compute, and composite operators decided as one, are in
// neither: they are as given.
struct InnerCalls {
  uint64_t all = 0;       // calls that reach dispatch(), calls of handlers, and inputs that were replaced
  uint64_t as_given = 0;  // of the calls: by the operator itself, on local tensors in the layouts that they had
};

inline thread_local InnerCalls inner_calls;

// What a piece of code of this thread adds to them.
class InnerCallsSince {
 public:
  // Whether no call was moved or computed otherwise.
  bool are_as_given() const { return all() == as_given(); }
  // After a handler; `*this` is older than the count of its call. A handler that goes on several times computes
  // otherwise.
  void end_handler() const {
    if (as_given() > all()) inner_calls.all += as_given() - all() + 1;
  }

 private:
  uint64_t all() const { return inner_calls.all - start_.all; }
  uint64_t as_given() const { return inner_calls.as_given - start_.as_given; }

  const InnerCalls start_ = inner_calls;
};

// For handlers that compute what the operator itself computes from the local tensors, or go on to what does.
void count_as_given();
// An input of a call was replaced by another tensor, before the call is decided.
void count_replaced_input();

// For handlers that go on to the composite operator's own code.
void run_composite_code(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace dtensor::internal
