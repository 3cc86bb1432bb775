// A table as text: columns as wide as their longest entry, two spaces between them.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::internal {

using TextRow = std::vector<std::string>;

// One line per row, each after `indent`. REQUIRES: rows of one size.
inline std::string text_table(const std::vector<TextRow>& rows, std::string_view indent = "") {
  std::vector<size_t> widths(rows.empty() ? 0 : rows.front().size());
  for (const TextRow& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const TextRow& row : rows) {
    text += indent;
    for (size_t c = 0; c < row.size(); ++c) {
      text += row[c];
      if (c + 1 < row.size()) text.append(widths[c] + 2 - row[c].size(), ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace dtensor::internal
