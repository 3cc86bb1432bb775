#include "dtensor/step_prediction.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

std::string PredictedCollectives::name() const {
  return absl::StrCat(std::string(dtensor::to_string(collective)), "(", mesh_dims, ")");
}

double StepPrediction::communication_seconds() const {
  double sum = 0;
  for (const PredictedCollectives& row : communication) sum += row.seconds;
  return sum;
}

std::string StepPrediction::to_string() const {
  std::string text =
      absl::StrFormat("%s a step, at most %s on a rank\n", seconds_text(seconds()), bytes_text(peak_bytes));
  size_t width = 17;
  for (const PredictedCollectives& row : communication) width = std::max(width, row.name().size());
  const auto add = [&](std::string name, const std::string& value) {
    name.resize(width, ' ');
    absl::StrAppend(&text, "  ", name, " ", value, "\n");
  };
  add("matrix products", absl::StrFormat("%s, %.3g FLOP", seconds_text(product_seconds), flops));
  add("other operators", seconds_text(operator_seconds));
  if (start_seconds > 0) add("of which to start", absl::StrFormat("%s, x%d", seconds_text(start_seconds), operators));
  for (const PredictedCollectives& row : communication) {
    add(row.name(), absl::StrFormat("%s, x%d, %s, %s", seconds_text(row.seconds), row.count, bytes_text(row.bytes),
                                    row.between_nodes ? "between nodes" : "within a node"));
  }
  if (overlapped_seconds > 0) add("overlapped", absl::StrCat("-", seconds_text(overlapped_seconds)));
  if (bubble_seconds > 0) add("bubble", seconds_text(bubble_seconds));
  add("memory", absl::StrCat(bytes_text(live_bytes), " before the step"));
  return text;
}

}  // namespace dtensor
