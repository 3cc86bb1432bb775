#include "propagation/decision.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plan/redistribute_plan.h"

namespace dtensor {

int64_t Decision::bytes() const {
  int64_t total = 0;
  for (const auto& plan : input_plans) total += plan ? plan->bytes : 0;
  return total;
}

double Decision::input_seconds() const {
  double total = 0;
  for (const auto& plan : input_plans) total += plan ? plan->seconds : 0;
  return total;
}

bool Decision::communicates() const {
  return absl::c_any_of(input_plans, [](const auto& plan) { return plan && !plan->is_local(); });
}

std::string Decision::explain(const OpCall& call) const {
  auto layouts = [](const std::vector<SpecPtr>& specs) {
    return absl::StrJoin(specs, ", ", [](std::string* out, const SpecPtr& spec) {
      absl::StrAppend(out, spec ? to_string(spec->placements()) : "None");
    });
  };
  std::string text = absl::StrCat(call.name(), "(", layouts(computed), ") -> ", layouts(outputs));
  for (size_t i = 0; i < input_plans.size(); ++i) {
    if (input_plans[i]) absl::StrAppend(&text, "; input ", i, ": ", input_plans[i]->to_string());
  }
  return text;
}

}  // namespace dtensor
