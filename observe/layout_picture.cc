#include "observe/layout_picture.h"

#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "observe/layout_card.h"
#include "observe/svg.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr double kCardGap = 16, kMargin = 24;
constexpr int kCardsPerRow = 3;
constexpr double kPageWidth = 2 * kMargin + kCardsPerRow * kCardWidth + (kCardsPerRow - 1) * kCardGap;
constexpr int64_t kMaxLegendRanks = 16;

std::string swatch(double x, double y, int64_t rank, int64_t ranks) {
  return svg_rect(
      x, y, 12, 12,
      absl::StrCat("rx=\"2\" fill=\"", rank_colour(rank, ranks), "\" stroke=\"#5b6470\" stroke-width=\"0.6\""));
}

// "layers.0.w" and "layers.1.w" of one layout: "layers.*.w".
std::vector<Card> cards_of(const std::vector<NamedSpec>& tensors) {
  std::vector<Card> cards;
  std::map<std::pair<std::string, const Spec*>, size_t> index;
  for (const auto& t : tensors) {
    std::string pattern, part;
    for (size_t i = 0; i <= t.name.size(); ++i) {
      if (i < t.name.size() && t.name[i] != '.') {
        part += t.name[i];
        continue;
      }
      const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
      absl::StrAppend(&pattern, number ? "*" : part, i < t.name.size() ? "." : "");
      part.clear();
    }
    const auto [it, fresh] = index.emplace(std::pair(pattern, t.spec.get()), cards.size());
    if (fresh) cards.push_back({t.name, 0, t.spec});
    Card& card = cards[it->second];
    if (++card.count > 1) card.name = pattern;
  }
  return cards;
}

// Swatches of the ranks with their coordinates; returns the height used.
double draw_legend(const DeviceMesh& mesh, double y, std::string& svg) {
  svg += svg_text(kMargin, y + 10, mesh.to_string(), "class=\"dim\"");
  if (mesh.size() > kMaxLegendRanks) {
    for (int64_t i = 0; i < 64; ++i) {
      svg += absl::StrCat("<rect x=\"", svg_number(kMargin + 200 + 6.0 * static_cast<double>(i)), "\" y=\"",
                          svg_number(y), "\" width=\"6\" height=\"12\" fill=\"",
                          rank_colour(i * mesh.world().size() / 64, mesh.world().size()), "\"/>\n");
    }
    svg += svg_text(kMargin + 592, y + 10, absl::StrCat("rank 0 to ", mesh.world().size() - 1), "class=\"dim\"");
    return 24;
  }
  double x = kMargin, row = y + 20;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const int64_t rank = mesh.ranks()[i];
    std::string label = absl::StrCat(rank, "  ");
    const auto coordinate = mesh.coordinate(rank);
    for (int64_t m = 0; m < mesh.ndim(); ++m) absl::StrAppend(&label, m > 0 ? " " : "", mesh.names()[m], coordinate[m]);
    const double width = 30 + 6.6 * static_cast<double>(label.size());
    if (x + width > kPageWidth - kMargin) x = kMargin, row += 20;
    svg += swatch(x, row, rank, mesh.world().size());
    svg += svg_text(x + 18, row + 10, label, "class=\"dim\"");
    x += width;
  }
  return row - y + 24;
}

}  // namespace

std::string layout_svg(const std::vector<NamedSpec>& tensors, const std::string& title) {
  const std::vector<Card> cards = cards_of(tensors);
  std::string body;
  double y = kMargin;
  if (!title.empty()) {
    body += svg_text(kMargin, y + 18, title, "class=\"title\"");
    y += 36;
  }
  std::set<const void*> meshes;
  for (const Card& c : cards) {
    if (meshes.insert(c.spec->mesh().identity()).second) y += draw_legend(c.spec->mesh(), y, body);
  }
  for (size_t i = 0; i < cards.size(); ++i) {
    const double x = kMargin + static_cast<double>(i % kCardsPerRow) * (kCardWidth + kCardGap);
    const double top = y + static_cast<double>(i / kCardsPerRow) * (kCardHeight + kCardGap);
    body += draw_card(cards[i], x, top);
  }
  const double rows = std::ceil(static_cast<double>(cards.size()) / kCardsPerRow);
  const double height = y + rows * (kCardHeight + kCardGap) + kMargin;
  return absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", svg_number(kPageWidth), "\" height=\"",
                      svg_number(height), "\" viewBox=\"0 0 ", svg_number(kPageWidth), " ", svg_number(height), "\">\n",
                      R"(<style>
text { font-family: "DejaVu Sans", "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2933; }
.title { font-size: 18px; font-weight: bold; }
.name { font-size: 13px; font-weight: bold; }
.dim { font-size: 11px; fill: #52606d; }
.note { font-size: 11px; fill: #9a3412; }
.rank { font-size: 11px; }
.axis { font-size: 10px; fill: #7b8794; }
</style>
<rect width="100%" height="100%" fill="#f5f7fa"/>
)",
                      body, "</svg>\n");
}

}  // namespace dtensor
