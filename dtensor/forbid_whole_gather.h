// A limit on implicit gathers by operators.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/scope.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// No operator implicitly gathers a tensor of more than `max_bytes` to every rank, as operators that need a whole matrix
// do (solve, Cholesky, eigh, inverse). redistribute(), full_tensor() and reductions are not limited. Limits nest: the
// smallest holds. Backward keeps it where backward() is called inside. Errors: max_bytes < 0 (ValueError); inside,
// before anything is sent, a gather of more (the text names operator, argument and bytes).
class ForbidWholeGather {
 public:
  explicit ForbidWholeGather(int64_t max_bytes = 0);

  // The executor calls it before it runs a plan.
  static void check(const RedistributePlan& plan, const CommCause& cause);

 private:
  class Limit;
  std::unique_ptr<internal::CommListener> limit_;
  internal::ScopeGuard guard_;
};

}  // namespace dtensor
