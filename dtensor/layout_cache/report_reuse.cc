#include "dtensor/layout_cache/report_reuse.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/reuse_event.h"
#include "comm/scope.h"
#include "dtensor/tensor/representation.h"
#include "plan/plan_text.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// "reduce_scatter(dp), all_gather(tp)".
std::string collectives_of(const RedistributePlan& plan) {
  Meshes meshes(plan);
  std::vector<std::string> texts;
  for (const RedistributeStep& step : plan.steps) {
    const std::string dims = absl::StrJoin(meshes.dim_names(step), ",");
    if (!step.is_local()) texts.push_back(absl::StrCat(std::string(to_string(step.collective())), "(", dims, ")"));
  }
  return absl::StrJoin(texts, ", ");
}

}  // namespace

bool reports_reuse() {
  const auto& listeners = current_scope().listeners;
  return std::any_of(listeners.begin(), listeners.end(), [](const CommListener* l) { return l->wants_reuse(); });
}

void report_reuse(const CommCause& cause, const RedistributePlan& plan) {
  if (reports_reuse() && !plan.is_local()) report_reuse(cause, collectives_of(plan), plan.bytes);
}

void report_reduced_copy(const CommCause& cause, const at::Tensor& t) {
  const SpecPtr& spec = spec_of(t);
  report_reuse(cause, *cached_plan(spec, without_partials(spec->placements())));
}

void report_reuse(const CommCause& cause, std::string saved, int64_t bytes) {
  if (!reports_reuse()) return;
  const ReuseEvent event{cause, in_backward(), std::move(saved), bytes};
  for (CommListener* listener : current_scope().listeners) {
    if (listener->wants_reuse()) listener->on_reuse(event);
  }
}

}  // namespace dtensor::internal
