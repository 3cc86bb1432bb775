// Reports to the listeners of the scope that an operator took an input from the cache of a tensor's memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "comm/comm_event.h"

namespace dtensor {
struct RedistributePlan;  // plan/redistribute_plan.h
}  // namespace dtensor

namespace dtensor::internal {

// Whether a listener wants reports. Ask before making a cause for one.
bool reports_reuse();

// `plan`: that the operator would have run. A local one is not reported.
void report_reuse(const CommCause& cause, const RedistributePlan& plan);
// A cached copy without Partials was used in place of `t`.
void report_reduced_copy(const CommCause& cause, const at::Tensor& t);
// `saved`, `bytes`: as in ReuseEvent.
void report_reuse(const CommCause& cause, std::string saved, int64_t bytes);

}  // namespace dtensor::internal
