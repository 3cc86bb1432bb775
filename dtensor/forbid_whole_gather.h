// A limit on what an operator may gather to every rank by itself.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/scope.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// No operator gathers a tensor of more than `max_bytes` to every rank by itself, as those do that need a matrix whole
// (solve, Cholesky, eigh, inverse); what redistribute() and full_tensor() are asked for is not limited, nor is a
// reduction. Limits nest: the smallest holds. Backward keeps it where backward() is called inside. Errors: max_bytes <
// 0 (ValueError); inside, before anything is sent, a gather of more (the text names operator, argument and bytes).
class ForbidWholeGather {
 public:
  explicit ForbidWholeGather(int64_t max_bytes = 0);

  // Internal: the executor asks before it runs a plan.
  static void check(const RedistributePlan& plan, const CommCause& cause);

 private:
  class Limit;
  std::unique_ptr<CommListener> limit_;
  ScopeGuard guard_;
};

}  // namespace dtensor
