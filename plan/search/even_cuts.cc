#include "plan/search/even_cuts.h"

namespace dtensor::internal {

// The remaining index range is a list of stretches of digits, the most significant first.
bool digits_of(const LayoutGeometry& geometry, const PlacementPointers& layout, int64_t d, Digits& digits) {
  struct Stretch {
    int64_t stride, radix;
  };
  absl::InlinedVector<Stretch, 4> left = {{1, geometry.size(d)}};
  for (int64_t m = 0; m < geometry.ndim(); ++m) {
    if (!geometry.cuts(layout, m, d)) continue;
    int64_t skip = layout[m]->is_strided_shard() ? layout[m]->split_factor() : 1;
    int64_t take = geometry.mesh_size(m);
    absl::InlinedVector<Stretch, 4> rest;
    for (Stretch s : left) {
      for (int64_t* wanted : {&skip, &take}) {  // from the top of the stretch
        if (*wanted == 1 || s.radix == 1 || (wanted == &take && skip > 1)) continue;
        const int64_t part = std::min(*wanted, s.radix);
        if (s.radix % part != 0 || *wanted % part != 0) return false;
        const Stretch top{s.stride * (s.radix / part), part};
        if (wanted == &take) {
          digits.push_back({m, top.stride, top.radix, take / part});  // the rest of it comes below
        } else {
          rest.push_back(top);
        }
        *wanted /= part;
        s.radix /= part;
      }
      if (s.radix > 1) rest.push_back(s);
    }
    if (skip > 1 || take > 1) return false;
    left = std::move(rest);
  }
  return true;
}

namespace {

constexpr int64_t kMostVisited = 1024;  // coordinates, where cuts are uneven

// Whether the ascending runs `whole` contain the ascending runs `part`.
bool contain(const IndexRanges& whole, const IndexRanges& part) {
  size_t w = 0;
  for (const IndexRange& run : part) {
    while (w < whole.size() && whole[w].begin + whole[w].size < run.begin + run.size) ++w;
    if (w == whole.size() || run.begin < whole[w].begin) return false;
  }
  return true;
}

// Whether every rank's indices of tensor dim d in `part` are among those in `whole`, by visiting the ranks. False also
// if there are too many.
bool is_inside_on_all_ranks(const LayoutGeometry& geometry, const PlacementPointers& part,
                            const PlacementPointers& whole, int64_t d) {
  const MeshDims of_part = geometry.cutters(part, d), of_whole = geometry.cutters(whole, d);
  int64_t coordinates = 1;
  for (int64_t m = 0; m < geometry.ndim(); ++m) {
    if (geometry.cuts(part, m, d) || geometry.cuts(whole, m, d)) coordinates *= geometry.mesh_size(m);
    if (coordinates > kMostVisited) return false;
  }
  absl::InlinedVector<int64_t, 4> at(static_cast<size_t>(geometry.ndim()), 0);
  for (int64_t i = 0; i < coordinates; ++i) {
    if (!contain(geometry.runs_of(whole, of_whole, d, at), geometry.runs_of(part, of_part, d, at))) return false;
    for (int64_t m = geometry.ndim() - 1; m >= 0; --m) {
      if (!geometry.cuts(part, m, d) && !geometry.cuts(whole, m, d)) continue;
      if (++at[m] < geometry.mesh_size(m)) break;
      at[m] = 0;
    }
  }
  return true;
}

}  // namespace

bool LayoutGeometry::inside(const PlacementPointers& part, const PlacementPointers& whole, uint64_t dims) const {
  if (innermost(part, dims)) return true;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    Digits coarse, fine;
    if (!digits_of(*this, whole, d, coarse) || !digits_of(*this, part, d, fine)) {
      if (!is_inside_on_all_ranks(*this, part, whole, d)) return false;
      continue;
    }
    for (const Digit& c : coarse) {
      const bool kept = std::any_of(fine.begin(), fine.end(), [&](const Digit& f) {
        return f.mesh_dim == c.mesh_dim && f.stride == c.stride && f.radix == c.radix && f.place == c.place;
      });
      if (!kept) return false;
    }
  }
  return true;
}

bool LayoutGeometry::same_parts(const PlacementPointers& before, const PlacementPointers& after) const {
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    Digits digits[2];
    if (!digits_of(*this, before, d, digits[0]) || !digits_of(*this, after, d, digits[1])) return false;
    for (Digits& list : digits) {  // stretches of digits, neighbours merged
      std::sort(list.begin(), list.end(), [](const Digit& a, const Digit& b) { return a.stride < b.stride; });
      Digits merged;
      for (const Digit& digit : list) {
        if (!merged.empty() && merged.back().stride * merged.back().radix == digit.stride) {
          merged.back().radix *= digit.radix;
        } else {
          merged.push_back(digit);
        }
      }
      list = std::move(merged);
    }
    if (digits[0].size() != digits[1].size()) return false;
    for (size_t i = 0; i < digits[0].size(); ++i) {
      if (digits[0][i].stride != digits[1][i].stride || digits[0][i].radix != digits[1][i].radix) return false;
    }
  }
  return true;
}

}  // namespace dtensor::internal
