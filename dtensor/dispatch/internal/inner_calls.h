// Finds out whether the code of a composite operator computes, from the local tensors as they are, what the operator
// itself computes from them: if all calls in it do, with inputs that stay where they are.
#pragma once

#include <cstdint>

namespace dtensor::internal {

// Of this thread, since it began. Calls with typed kernels are in neither: they are as given.
struct InnerCalls {
  uint64_t all = 0;       // calls on distributed tensors, and of operators' handlers
  uint64_t as_given = 0;  // of them: by the operator itself, on local tensors in the layouts that they had
};

inline thread_local InnerCalls inner_calls;

// Of a piece of code that this thread runs, since the construction.
class InnerCallsSince {
 public:
  // Whether none were moved or computed otherwise.
  bool are_as_given() const { return inner_calls.all - start_.all == inner_calls.as_given - start_.as_given; }

 private:
  const InnerCalls start_ = inner_calls;
};

}  // namespace dtensor::internal
