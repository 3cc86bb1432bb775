// Contracts about communication: a violation throws before anything is sent, and leaves every tensor unchanged.
//
//   ForbidImplicitCommunication only_what_i_ask_for;
//   CommBudget budget({.max_calls = 4, .max_bytes = 1 << 20});
//   loss = model(batch);
//
// Guards like those of dtensor/scopes.h: they last until the end of the block, nest, and apply in autograd's threads
// when backward is called inside. All ranks of a program reach the same decision.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "comm/scope.h"

namespace dtensor {

// A collective that the library would insert by itself is an error; those that redistribute(), full_tensor(), ... ask
// for run.
class ForbidImplicitCommunication {
 public:
  ForbidImplicitCommunication();

 private:
  internal::ScopeGuard guard_;
};

// Fields that are not set allow anything.
struct CommBudgetOptions {
  int64_t max_calls = std::numeric_limits<int64_t>::max();
  int64_t max_bytes = std::numeric_limits<int64_t>::max();  // received by the rank that receives most, as planned
};

// The collective that would exceed the budget is an error; it is not counted, and smaller ones may follow. Counts
// explicit and implicit ones, as CommDebugMode does.
class CommBudget {
 public:
  // Error (ValueError): a limit is negative.
  explicit CommBudget(const CommBudgetOptions& options);
  ~CommBudget();

  // Thread-safe.
  int64_t calls() const;
  int64_t bytes() const;

 private:
  class Counter;
  std::unique_ptr<Counter> counter_;
  internal::ScopeGuard guard_;
};

}  // namespace dtensor
