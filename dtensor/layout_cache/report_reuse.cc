#include "dtensor/layout_cache/report_reuse.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/reuse_event.h"
#include "comm/scope.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// "reduce_scatter(dp), all_gather(tp)". REQUIRES: the plan stays on one mesh.
std::string collectives_of(const RedistributePlan& plan) {
  std::string text;
  for (const RedistributeStep& step : plan.steps) {
    if (step.is_local()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", std::string(to_string(step.collective())));
    const char* separator = "(";
    for (const int64_t m : step.dims) absl::StrAppend(&text, std::exchange(separator, ","), plan.to.mesh().names()[m]);
    absl::StrAppend(&text, ")");
  }
  return text;
}

}  // namespace

bool reports_reuse() { return !current_scope().listeners.empty(); }

void report_reuse(const CommCause& cause, const RedistributePlan& plan) {
  if (reports_reuse() && !plan.is_local()) report_reuse(cause, collectives_of(plan), plan.bytes);
}

void report_reduced_copy(const CommCause& cause, const at::Tensor& t) {
  const SpecPtr& spec = spec_of(t);
  report_reuse(cause, *cached_plan(spec, without_partials(spec->placements())));
}

void report_reuse(const CommCause& cause, std::string saved, int64_t bytes) {
  const auto& listeners = current_scope().listeners;
  if (listeners.empty()) return;
  const ReuseEvent event{cause, in_backward(), std::move(saved), bytes};
  for (CommListener* listener : listeners) listener->on_reuse(event);
}

}  // namespace dtensor::internal
