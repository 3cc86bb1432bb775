#include "dtensor/layout_settings.h"

#include <c10/util/Exception.h>

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor::internal {

int64_t setting_of(const NamedNumbers& settings, const std::string& name, const char* function) {
  std::vector<std::string> names;
  for (const auto& [known, value] : settings) {
    if (known == name) return value;
    names.push_back(known);
  }
  TORCH_CHECK_VALUE(false, "[", function, "] there is no setting '", name,
                    names.empty() ? "'; the options have no settings" : "', only: ", absl::StrJoin(names, ", "));
}

int64_t product_or_most(int64_t a, int64_t b) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return b != 0 && a > kMost / b ? kMost : a * b;
}

int64_t num_combinations(const LayoutSettings& settings) {
  int64_t all = 1;
  for (const auto& [name, values] : settings) all = product_or_most(all, static_cast<int64_t>(values.size()));
  return all;
}

NamedNumbers combination(const LayoutSettings& settings, int64_t n) {
  NamedNumbers numbers;
  for (const auto& [name, values] : settings) numbers.emplace_back(name, 0);
  for (size_t s = numbers.size(); s-- > 0;) {
    const auto& values = settings[s].second;
    numbers[s].second = values[static_cast<size_t>(n) % values.size()];
    n /= static_cast<int64_t>(values.size());
  }
  return numbers;
}

std::string numbers_text(const NamedNumbers& numbers) {
  return absl::StrJoin(numbers, " ",
                       [](std::string* out, const auto& n) { absl::StrAppend(out, n.first, "=", n.second); });
}

}  // namespace dtensor::internal
