#include "comm/group.h"

#include "absl/strings/str_cat.h"

namespace dtensor::internal {

std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    absl::StrAppend(&text, text.empty() ? "" : ",", ranks[i]);
    if (end - i > 1) absl::StrAppend(&text, end - i > 2 ? "-" : ",", ranks[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace dtensor::internal
