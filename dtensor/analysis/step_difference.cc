#include "dtensor/analysis/step_difference.h"

#include <cmath>
#include <exception>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "plan/plan_text.h"

namespace dtensor::internal {
namespace {

// Seconds by what they are spent on.
std::map<std::string, double> terms_of(const StepPrediction& step) {
  std::map<std::string, double> terms = {{"matrix products", step.product_seconds},
                                         {"other operators", step.operator_seconds},
                                         {"bubble", step.bubble_seconds},
                                         {"overlapped", -step.overlapped_seconds}};
  for (const PredictedCollectives& c : step.communication) {
    terms[absl::StrCat(c.name(), c.between_nodes ? " between nodes" : "")] += c.seconds;
  }
  return terms;
}

std::string signed_seconds(double seconds) {
  return absl::StrCat(seconds < 0 ? "-" : "+", seconds_text(std::abs(seconds)));
}

}  // namespace

std::string step_difference(const StepPrediction& best, const StepPrediction& other) {
  std::map<std::string, double> terms = terms_of(other);
  for (const auto& [name, seconds] : terms_of(best)) terms[name] -= seconds;
  std::vector<std::pair<std::string, double>> largest(terms.begin(), terms.end());
  absl::c_stable_sort(largest, [](const auto& a, const auto& b) { return std::abs(a.second) > std::abs(b.second); });
  const double least = largest.front().second == 0 ? 0 : std::abs(largest.front().second) / 20;
  std::vector<std::string> parts;
  for (const auto& [name, seconds] : largest) {
    if (std::abs(seconds) > least && parts.size() < 4)
      parts.push_back(absl::StrCat(name, " ", signed_seconds(seconds)));
  }
  return parts.empty() ? "the same terms" : absl::StrJoin(parts, ", ");
}

std::string error_of(const std::function<void()>& run) {
  std::string error;
  try {
    run();
    return "";
  } catch (const std::exception& e) {
    error = message_of(e);
  } catch (...) {
    return "an exception that is not a std::exception";
  }
  return error.empty() ? "an exception without a text" : error;
}

}  // namespace dtensor::internal
