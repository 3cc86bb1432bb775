#include "observe/layout_grid.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace dtensor::internal {
namespace {

bool sharded_on(const Spec& spec, int64_t dim) {
  return std::any_of(spec.placements().begin(), spec.placements().end(),
                     [&](const Placement& p) { return p.is_sharded_on(dim); });
}

std::vector<int64_t> cuts_of(const std::vector<LocalLayout>& parts, int64_t dim, int64_t size) {
  std::vector<int64_t> cuts{0, size};
  for (const auto& part : parts) {
    for (const IndexRange& run : part.dims[dim]) {
      cuts.push_back(run.begin);
      cuts.push_back(run.begin + run.size);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// Indices of the intervals between cuts that `runs` cover.
std::vector<size_t> covered(const std::vector<int64_t>& cuts, const IndexRanges& runs) {
  std::vector<size_t> result;
  for (const IndexRange& run : runs) {
    size_t i = std::lower_bound(cuts.begin(), cuts.end(), run.begin) - cuts.begin();
    for (; i + 1 < cuts.size() && cuts[i] < run.begin + run.size; ++i) result.push_back(i);
  }
  return result;
}

}  // namespace

absl::InlinedVector<int64_t, 2> drawn_dims(const Spec& spec) {
  std::vector<int64_t> order(spec.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const bool sa = sharded_on(spec, a), sb = sharded_on(spec, b);
    return sa != sb ? sa : spec.sizes()[a] > spec.sizes()[b];
  });
  order.resize(std::min<size_t>(order.size(), 2));
  std::sort(order.begin(), order.end());
  return {order.begin(), order.end()};
}

LayoutGrid layout_grid(const Spec& spec) {
  LayoutGrid grid;
  grid.dims = drawn_dims(spec);
  const DeviceMesh& mesh = spec.mesh();
  std::vector<int64_t> ranks(mesh.ranks().begin(), mesh.ranks().begin() + mesh.size());
  std::vector<LocalLayout> parts;
  for (int64_t rank : ranks) parts.push_back(spec.layout_of_rank(rank));

  const int64_t row_dim = grid.dims.size() == 2 ? grid.dims[0] : -1;
  const int64_t column_dim = grid.dims.empty() ? -1 : grid.dims.back();
  const auto cuts = [&](int64_t dim) {
    return dim < 0 ? std::vector<int64_t>{0, 1} : cuts_of(parts, dim, spec.sizes()[dim]);
  };
  grid.row_cuts = cuts(row_dim);
  grid.column_cuts = cuts(column_dim);
  const size_t columns = grid.column_cuts.size() - 1;
  grid.cells.resize((grid.row_cuts.size() - 1) * columns);

  // The ranks of a cell are of one group if they differ in the coordinates of Partial mesh dims only.
  absl::flat_hash_map<std::pair<size_t, int64_t>, size_t> group_of;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (parts[i].empty()) {
      grid.empty.push_back(ranks[i]);
      continue;
    }
    const auto coordinate = mesh.coordinate(ranks[i]);
    int64_t key = 0;
    for (int64_t m = 0; m < mesh.ndim(); ++m)
      key = key * mesh.size(m) + (spec.placements()[m].is_partial() ? 0 : coordinate[m]);
    const IndexRanges whole{{0, 1}};
    for (size_t r : covered(grid.row_cuts, row_dim < 0 ? whole : parts[i].dims[row_dim])) {
      for (size_t c : covered(grid.column_cuts, column_dim < 0 ? whole : parts[i].dims[column_dim])) {
        std::vector<LayoutGrid::RankGroups>& groups = grid.cells[r * columns + c];
        const auto [it, is_new] = group_of.try_emplace({r * columns + c, key}, groups.size());
        if (is_new) groups.emplace_back();
        groups[it->second].push_back(ranks[i]);
      }
    }
  }
  return grid;
}

Sheets sheets_of(const Spec& spec, const absl::InlinedVector<int64_t, 2>& drawn) {
  Sheets s;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    const Placement& p = spec.placements()[m];
    if (p.is_sharded() && std::find(drawn.begin(), drawn.end(), p.dim()) != drawn.end()) continue;
    s.dims.push_back(m);
    (p.is_partial() ? s.addends : p.is_sharded() ? s.cuts : s.copies) *= spec.mesh().size(m);
    if (p.is_partial()) s.op = p.reduce_op();
  }
  return s;
}

std::string describe(const Sheets& sheets) {
  std::string d;
  const auto add = [&](int64_t n, const std::string& what) {
    if (n > 1) absl::StrAppend(&d, d.empty() ? "" : " x ", n, " ", what);
  };
  add(sheets.copies, "copies");
  add(sheets.addends, absl::StrCat("addends (", std::string(to_string(sheets.op)), ")"));
  add(sheets.cuts, "pieces along other dims");
  return d;
}

std::string join_ranks(const std::vector<int64_t>& ranks, const char* separator) {
  const bool consecutive = ranks.size() > 2 && ranks.back() - ranks.front() == static_cast<int64_t>(ranks.size()) - 1 &&
                           std::is_sorted(ranks.begin(), ranks.end());
  if (consecutive) {
    const bool addends = *separator == '+';
    return std::to_string(ranks.front()) + (addends ? "+...+" : "-") + std::to_string(ranks.back());
  }
  std::string s;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) s += separator;
    if (ranks.size() > 6 && i == 3) {
      s += "...";
      s += separator;
      i = ranks.size() - 1;
    }
    s += std::to_string(ranks[i]);
  }
  return s;
}

std::string describe_holders(const std::vector<LayoutGrid::RankGroups>& groups) {
  if (std::all_of(groups.begin(), groups.end(), [](const auto& g) { return g.size() == 1; })) {
    std::vector<int64_t> ranks;
    for (const auto& g : groups) ranks.push_back(g.front());
    return join_ranks(ranks, ",");
  }
  std::string s;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i > 0) s += ", ";
    if (groups.size() > 4 && i == 2) {
      s += "..., ";
      i = groups.size() - 1;
    }
    s += join_ranks(groups[i], "+");
  }
  return s;
}

}  // namespace dtensor::internal
