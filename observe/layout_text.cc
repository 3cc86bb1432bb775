#include "observe/layout_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "observe/layout_grid.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kMaxCells = 8;                      // per side
constexpr int64_t kMaxLines = 16, kMaxColumns = 72;  // that scaling may take
constexpr double kTolerance = 0.1;                   // of proportions
constexpr size_t kGap = ~size_t{0};

// Which of n rows or columns of cells are drawn: the first ones, a gap, the last one.
std::vector<size_t> shown(size_t n) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < n && (i + 1 < kMaxCells || n == kMaxCells); ++i) indices.push_back(i);
  if (n > kMaxCells) indices.insert(indices.end(), {kGap, n - 1});
  return indices;
}

std::string range(const std::vector<int64_t>& cuts, size_t i) {
  return i == kGap ? "..." : absl::StrCat(cuts[i], ":", cuts[i + 1]);
}

// The smallest whole lengths, none below its entry of `least`, that stand to one another as the sizes of the shown
// cells do, or as nearly as `most` in all allows.
std::vector<int64_t> scaled(const std::vector<int64_t>& cuts, const std::vector<size_t>& shown,
                            const std::vector<int64_t>& least, int64_t most) {
  const auto size = [&](size_t k) { return static_cast<double>(cuts[shown[k] + 1] - cuts[shown[k]]); };
  double largest = 0;
  for (size_t k = 0; k < shown.size(); ++k) {
    if (shown[k] != kGap) largest = std::max(largest, size(k));
  }
  std::vector<int64_t> best = least;
  double best_error = INFINITY;
  for (int64_t unit = 1; unit <= most && best_error > kTolerance; ++unit) {  // of the largest cell
    std::vector<int64_t> lengths = least;
    int64_t total = 0;
    double error = 0;
    for (size_t k = 0; k < shown.size(); ++k) {
      if (shown[k] != kGap) {
        const double exact = size(k) * static_cast<double>(unit) / largest;
        lengths[k] = std::max(least[k], static_cast<int64_t>(std::llround(exact)));
        error = std::max(error, std::abs(static_cast<double>(lengths[k]) / exact - 1));
      }
      total += lengths[k];
    }
    if (total <= most && error < best_error) best_error = error, best = lengths;
  }
  return best;
}

std::string repeated(const char* what, int64_t n) {
  std::string s;
  for (int64_t i = 0; i < n; ++i) s += what;
  return s;
}

std::string padded(const std::string& s, size_t width, bool right = false) {
  const std::string fill(width > s.size() ? width - s.size() : 0, ' ');
  return right ? fill + s : s + fill;
}

}  // namespace

namespace internal {

std::string grid_text(const LayoutGrid& grid, bool to_scale) {
  const size_t all_rows = grid.row_cuts.size() - 1, all_columns = grid.column_cuts.size() - 1;
  const std::vector<size_t> rows = shown(all_rows), columns = shown(all_columns);
  std::vector<std::string> left, top, text;
  std::vector<int64_t> height(rows.size(), 1), width;
  size_t left_width = 0;
  for (size_t r : rows) {
    left.push_back(grid.dims.size() == 2 ? range(grid.row_cuts, r) : "");
    left_width = std::max(left_width, left.back().size());
    for (size_t c : columns)
      text.push_back(r == kGap || c == kGap ? "..." : describe_holders(grid.cells[r * all_columns + c]));
  }
  for (size_t c = 0; c < columns.size(); ++c) {
    top.push_back(grid.dims.empty() ? "" : range(grid.column_cuts, columns[c]));
    size_t w = std::max<size_t>(1, top[c].size());
    for (size_t r = 0; r < rows.size(); ++r) w = std::max(w, text[r * columns.size() + c].size());
    width.push_back(static_cast<int64_t>(w) + 2);
  }
  if (to_scale) {
    height = scaled(grid.row_cuts, rows, height, kMaxLines);
    const int64_t natural = std::accumulate(width.begin(), width.end(), int64_t{0});
    width = scaled(grid.column_cuts, columns, width, std::max(kMaxColumns, natural + natural / 4));
  }

  std::string out;
  const auto rule = [&](const char* begin, const char* middle, const char* end) {
    absl::StrAppend(&out, std::string(left_width + 3, ' '), begin);
    for (size_t c = 0; c < columns.size(); ++c) {
      absl::StrAppend(&out, repeated("─", width[c]), c + 1 < columns.size() ? middle : end);
    }
    out += '\n';
  };
  if (!grid.dims.empty()) {
    out += std::string(left_width + 4, ' ');
    for (size_t c = 0; c < columns.size(); ++c) {
      absl::StrAppend(&out, " ", c + 1 < columns.size() ? padded(top[c], width[c]) : top[c]);
    }
    out += '\n';
  }
  rule("┌", "┬", "┐");
  for (size_t r = 0; r < rows.size(); ++r) {
    if (r > 0) rule("├", "┼", "┤");
    for (int64_t line = 0; line < height[r]; ++line) {
      const bool middle = line == (height[r] - 1) / 2;
      absl::StrAppend(&out, "  ", padded(middle ? left[r] : "", left_width, /*right=*/true), " ");
      for (size_t c = 0; c < columns.size(); ++c) {
        absl::StrAppend(&out, "│ ", padded(middle ? text[r * columns.size() + c] : "", width[c] - 1));
      }
      out += "│\n";
    }
  }
  rule("└", "┴", "┘");
  return out;
}

}  // namespace internal

std::string layout_text(const Spec& spec) {
  std::string out = spec.to_string() + "\n";
  if (spec.meta().numel() == 0) return out + "  no elements\n";
  const LayoutGrid grid = layout_grid(spec);
  if (spec.ndim() > 2) absl::StrAppend(&out, "  dims ", grid.dims[0], " (down) and ", grid.dims[1], " (across)\n");
  out += grid_text(grid, /*to_scale=*/true);
  if (const std::string sheets = describe(sheets_of(spec, grid.dims)); !sheets.empty()) {
    absl::StrAppend(&out, "  ", sheets, "\n");
  }
  if (!grid.empty.empty()) {
    absl::StrAppend(&out, "  nothing on rank", grid.empty.size() > 1 ? "s " : " ", join_ranks(grid.empty, ", "), "\n");
  }
  return out;
}

}  // namespace dtensor
