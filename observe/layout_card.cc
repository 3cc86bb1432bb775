#include "observe/layout_card.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "observe/layout_grid.h"
#include "observe/svg.h"

namespace dtensor::internal {
namespace {

constexpr int kMaxSheets = 4;             // drawn behind one another; the count says how many there are
constexpr int64_t kMaxRanksDrawn = 1024;  // of a sheet

std::string human_bytes(int64_t bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double v = static_cast<double>(bytes);
  int u = 0;
  while (v >= 1024 && u < 4) v /= 1024, ++u;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, u > 0 && v < 100 ? "%.1f %s" : "%.0f %s", v, units[u]);
  return buffer;
}

std::string shortened(const std::string& s, size_t most) {
  return s.size() <= most ? s : "..." + s.substr(s.size() - most + 3);
}

class CardDrawer {
 public:
  CardDrawer(const Card& card, double x, double y) : card_(card), spec_(*card.spec), x_(x), y_(y) {}

  std::string draw() {
    svg_ = absl::StrCat("<rect x=\"", svg_number(x_), "\" y=\"", svg_number(y_), "\" width=\"", svg_number(kCardWidth),
                        "\" height=\"", svg_number(kCardHeight), "\" rx=\"8\" fill=\"#ffffff\" stroke=\"#d5dae1\"/>\n");
    const std::string times = card_.count > 1 ? absl::StrCat("  x", card_.count) : "";
    svg_ += svg_text(x_ + 14, y_ + 23, shortened(card_.name, 38 - times.size()) + times, "class=\"name\"");
    svg_ += svg_text(x_ + 14, y_ + 40, shortened(spec_.to_short_string(), 46), "class=\"dim\"");
    const int64_t whole = spec_.meta().bytes(), part = spec_.max_local_bytes();
    std::string foot = human_bytes(whole);
    if (part != whole) absl::StrAppend(&foot, ", at most ", human_bytes(part), " per rank");
    svg_ += svg_text(x_ + 14, y_ + kCardHeight - 12, foot, "class=\"dim\"");
    if (spec_.meta().numel() == 0) {
      svg_ += svg_text(x_ + 14, y_ + 90, "no elements", "class=\"dim\"");
    } else {
      draw_sheets();
    }
    return std::move(svg_);
  }

 private:
  struct Box {
    double x, y, w, h;
  };

  void draw_sheets() {
    grid_ = layout_grid(spec_);
    sheets_ = sheets_of(spec_, grid_.dims);
    const int shown = static_cast<int>(std::min<int64_t>(sheets_.count(), kMaxSheets));
    const double step_x = 13, step_y = 10;
    // Side lengths grow with the logarithm of the sizes; otherwise a bias next to a table would be too thin to see.
    const double rows = grid_.dims.size() == 2 ? static_cast<double>(grid_.row_cuts.back()) : 0;
    const double columns = grid_.dims.empty() ? 0 : static_cast<double>(grid_.column_cuts.back());
    const double available_w = kCardWidth - 66 - step_x * (shown - 1);
    const double available_h = kCardHeight - 122 - step_y * (shown - 1);
    const double side = std::log2(std::max({rows, columns, 2.0}));
    const auto length = [&](double n, double available, double least) {
      return n <= 0 ? least : std::max(least, available * std::max(std::log2(std::max(n, 2.0)) / side, 0.25));
    };
    const double height = grid_.dims.size() < 2 ? 24 : length(rows, available_h, 24);
    const Box front{x_ + 44, y_ + 58 + step_y * (shown - 1) + (available_h - height) / 2,
                    grid_.dims.empty() ? 26 : length(columns, available_w, 26), height};

    const int64_t n = spec_.mesh().size();
    const std::vector<int64_t> ranks(spec_.mesh().ranks().begin(), spec_.mesh().ranks().begin() + n);
    for (int k = shown - 1; k >= 0; --k) {
      const Box box{front.x + step_x * k, front.y - step_y * k, front.w, front.h};
      svg_ +=
          absl::StrCat("<rect x=\"", svg_number(box.x), "\" y=\"", svg_number(box.y), "\" width=\"", svg_number(box.w),
                       "\" height=\"", svg_number(box.h), "\" fill=\"#ffffff\" stroke=\"#5b6470\"",
                       sheets_.addends > 1 ? " stroke-dasharray=\"4 2\"" : "", "/>\n");
      int64_t drawn = 0;
      for (int64_t rank : ranks) {
        if (sheet_of(rank) == k && ++drawn <= kMaxRanksDrawn) draw_part(rank, box, /*label=*/k == 0);
      }
    }
    label_axes(front);
    std::string below = describe(sheets_);
    if (sheets_.count() > shown) absl::StrAppend(&below, ", ", shown, " drawn");
    if (!grid_.empty.empty()) {
      absl::StrAppend(&below, below.empty() ? "" : ";  ", "nothing on rank", grid_.empty.size() > 1 ? "s " : " ",
                      join_ranks(grid_.empty, ", "));
    }
    if (!below.empty()) svg_ += svg_text(x_ + 14, y_ + kCardHeight - 28, below, "class=\"note\"");
  }

  // Index of the sheet a rank is on: row-major over the mesh dims that distinguish sheets.
  int64_t sheet_of(int64_t rank) const {
    const auto coordinate = spec_.mesh().coordinate(rank);
    int64_t index = 0;
    for (int64_t m : sheets_.dims) index = index * spec_.mesh().size(m) + coordinate[m];
    return index;
  }

  void draw_part(int64_t rank, const Box& box, bool label) {
    const LocalLayout part = spec_.layout_of_rank(rank);
    if (part.empty()) return;
    const IndexRanges whole{{0, 1}};
    const IndexRanges& rows = grid_.dims.size() == 2 ? part.dims[grid_.dims[0]] : whole;
    const IndexRanges& columns = grid_.dims.empty() ? whole : part.dims[grid_.dims.back()];
    const double sy = box.h / static_cast<double>(grid_.row_cuts.back()),
                 sx = box.w / static_cast<double>(grid_.column_cuts.back());
    for (const IndexRange& r : rows) {
      for (const IndexRange& c : columns) {
        const Box b{box.x + sx * static_cast<double>(c.begin), box.y + sy * static_cast<double>(r.begin),
                    sx * static_cast<double>(c.size), sy * static_cast<double>(r.size)};
        svg_ += svg_rect(b.x, b.y, b.w, b.h,
                         absl::StrCat("fill=\"", rank_colour(rank, spec_.mesh().world().size()),
                                      "\" stroke=\"#5b6470\" stroke-width=\"0.6\"",
                                      sheets_.addends > 1 ? " stroke-dasharray=\"4 2\"" : ""),
                         describe_part(rank, part));
        const std::string number = std::to_string(rank);
        if (label && b.w >= 7.0 * static_cast<double>(number.size()) + 3 && b.h >= 12) {
          svg_ += svg_text(b.x + b.w / 2, b.y + b.h / 2 + 4, number, "class=\"rank\" text-anchor=\"middle\"");
        }
      }
    }
  }

  // "rank 3 (dp=1, tp=1): [0:5, 4:8]"
  std::string describe_part(int64_t rank, const LocalLayout& part) const {
    std::string s = absl::StrCat("rank ", rank, " (");
    const auto coordinate = spec_.mesh().coordinate(rank);
    for (int64_t m = 0; m < spec_.mesh().ndim(); ++m) {
      absl::StrAppend(&s, m > 0 ? ", " : "", spec_.mesh().names()[m], "=", coordinate[m]);
    }
    absl::StrAppend(&s, "): [");
    for (size_t d = 0; d < part.dims.size(); ++d) {
      if (d > 0) absl::StrAppend(&s, ", ");
      for (size_t k = 0; k < part.dims[d].size() && k < 4; ++k) {
        absl::StrAppend(&s, k > 0 ? "+" : "", part.dims[d][k].begin, ":", part.dims[d][k].begin + part.dims[d][k].size);
      }
      if (part.dims[d].size() > 4) absl::StrAppend(&s, "+...");
    }
    return s + "]";
  }

  void label_axes(const Box& box) {
    if (grid_.dims.empty()) return;
    const std::string across =
        grid_.dims.size() == 2 && spec_.ndim() > 2 ? absl::StrCat("dim ", grid_.dims[1], ": ") : "";
    svg_ += svg_text(box.x + box.w / 2, box.y + box.h + 13, absl::StrCat(across, grid_.column_cuts.back()),
                     "class=\"axis\" text-anchor=\"middle\"");
    if (grid_.dims.size() < 2) return;
    const std::string down = spec_.ndim() > 2 ? absl::StrCat("dim ", grid_.dims[0], ": ") : "";
    const double x = box.x - 6, y = box.y + box.h / 2;
    svg_ += absl::StrCat("<text x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" transform=\"rotate(-90 ",
                         svg_number(x), " ", svg_number(y), ")\" class=\"axis\" text-anchor=\"middle\">", down,
                         grid_.row_cuts.back(), "</text>\n");
  }

  const Card& card_;
  const Spec& spec_;
  double x_, y_;
  LayoutGrid grid_;
  Sheets sheets_;
  std::string svg_;
};

}  // namespace

std::string draw_card(const Card& card, double x, double y) { return CardDrawer(card, x, y).draw(); }

// A dozen hand-picked hues, then evenly spaced ones.
std::string rank_colour(int64_t rank, int64_t ranks) {
  static const char* const kFew[] = {"#8ecae6", "#ffb703", "#95d5b2", "#f4978e", "#cdb4db", "#d4a373",
                                     "#a8dadc", "#e9c46a", "#b5c99a", "#f7a1c4", "#a5a5e8", "#d8d0c0"};
  if (ranks <= 12) return kFew[rank % 12];
  const double hue = 360.0 * static_cast<double>(rank) / static_cast<double>(ranks);
  return absl::StrCat("hsl(", svg_number(hue), ",", 65, "%,", rank % 2 ? 70 : 78, "%)");
}

}  // namespace dtensor::internal
