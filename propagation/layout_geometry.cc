#include "propagation/layout_geometry.h"

#include <algorithm>

namespace dtensor {
namespace {

constexpr int64_t kMaxRanksVisited = int64_t{1} << 14;

bool has(uint64_t set, int64_t bit) { return (set >> bit & 1) != 0; }

// Elements of `size` that the first rank along a mesh dim of size n keeps, and whether all ranks keep as many.
int64_t first_part(int64_t size, const Placement& placement, int64_t n, bool& even) {
  const int64_t pieces = placement.is_strided_shard() ? placement.split_factor() : 1;
  if (size % (pieces * n) == 0) return size / n;
  even = false;
  const int64_t piece = chunk(size, pieces, 0).size;
  if (piece == 0) return 0;
  return size / piece * chunk(piece, n, 0).size + chunk(size % piece, n, 0).size;
}

}  // namespace

Layers layers_of(const Placements& placements) {
  Layers layers;
  for (const Placement& p : placements) layers.push_back(&p);
  return layers;
}

LayoutGeometry::LayoutGeometry(const std::vector<int64_t>& mesh_shape, const TensorMeta& meta)
    : mesh_shape_(mesh_shape), sizes_(meta.sizes), item_bytes_(static_cast<int64_t>(c10::elementSize(meta.dtype))) {}

MeshDims LayoutGeometry::cutters(const Layers& layout, int64_t d) const {
  MeshDims dims;
  for (int64_t m = 0; m < ndim(); ++m) {
    if (cuts(layout, m, d)) dims.push_back(m);
  }
  return dims;
}

bool LayoutGeometry::innermost(const Layers& cut, uint64_t dims) const {
  for (int64_t m = 0; m < ndim(); ++m) {
    if (!has(dims, m) || !cut[m]->is_sharded()) continue;
    for (int64_t later = m + 1; later < ndim(); ++later) {
      if (!has(dims, later) && cuts(cut, later, cut[m]->dim())) return false;
    }
  }
  return true;
}

bool LayoutGeometry::inside(const Layers& part, const Layers& whole, uint64_t dims) const {
  if (innermost(part, dims)) return true;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    Digits coarse, fine;
    if (!digits_of(whole, d, coarse) || !digits_of(part, d, fine)) return false;
    for (const Digit& c : coarse) {
      const bool kept = std::any_of(fine.begin(), fine.end(), [&](const Digit& f) {
        return f.mesh_dim == c.mesh_dim && f.stride == c.stride && f.radix == c.radix && f.place == c.place;
      });
      if (!kept) return false;
    }
  }
  return true;
}

int64_t LayoutGeometry::part_bytes(const Layers& layout) const {
  Shape sizes = sizes_;
  bool even = true;
  bool strided = false;
  for (int64_t m = 0; m < ndim(); ++m) {
    if (!layout[m]->is_sharded() || mesh_shape_[m] == 1) continue;
    int64_t& size = sizes[layout[m]->dim()];
    size = first_part(size, *layout[m], mesh_shape_[m], even);
    strided |= layout[m]->is_strided_shard();
  }
  int64_t bytes = item_bytes_;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    // Strides may cut a short part into fewer, larger pieces than a long one.
    bytes *= even || !strided ? sizes[d] : longest_part(layout, d);
  }
  return bytes;
}

int64_t LayoutGeometry::longest_part(const Layers& layout, int64_t d) const {
  std::vector<Coordinates> unused(ndim());
  const Coordinates sizes = add_breakpoints(layout, d, unused);
  return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

int64_t LayoutGeometry::received_bytes(const Layers& before, const Layers& after) const {
  int64_t target = 1;  // elements of a new part
  int64_t kept = 1;    // of them, in the old part of the rank that keeps least
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    int64_t old_size = sizes_[d];
    int64_t new_size = sizes_[d];
    bool even = true;
    bool nested = true;    // one is the other and more cuts
    bool disjoint = false;  // on some rank
    bool plain = true;
    int64_t a = 0;
    int64_t b = 0;
    for (;;) {
      while (a < ndim() && !cuts(before, a, d)) ++a;
      while (b < ndim() && !cuts(after, b, d)) ++b;
      if (a == ndim() && b == ndim()) break;
      if (nested && a < ndim() && b < ndim() && (a != b || !(*before[a] == *after[b]))) {
        nested = false;
        // Chunks along two mesh dims: one rank has the first and wants the last.
        disjoint = a != b && before[a]->is_shard() && after[b]->is_shard();
      }
      if (a < ndim()) {
        old_size = first_part(old_size, *before[a], mesh_shape_[a], even);
        ++a;
      } else {
        plain = false;
      }
      if (b < ndim()) {
        new_size = first_part(new_size, *after[b], mesh_shape_[b], even);
        ++b;
      } else {
        plain = false;
      }
    }
    const bool unchanged = nested && plain;  // largest on the first rank, whatever the other dims do
    if (!even && !unchanged) return received_numel_by_visiting(before, after) * item_bytes_;
    int64_t shared = 0;
    if (nested) {
      shared = std::min(old_size, new_size);
    } else if (!disjoint) {
      shared = least_overlap(before, after, d);
      if (shared < 0) return received_numel_by_visiting(before, after) * item_bytes_;
    }
    target *= new_size;
    kept *= shared;
  }
  return (target - kept) * item_bytes_;
}

// Digits that both layouts tie to one coordinate agree; those tied to two do not, on some rank; what no layout ties is free.
int64_t LayoutGeometry::least_overlap(const Layers& before, const Layers& after, int64_t d) const {
  Digits digits[2];
  if (!digits_of(before, d, digits[0]) || !digits_of(after, d, digits[1])) return -1;
  absl::InlinedVector<int64_t, 12> bounds;
  for (const Digits& list : digits) {
    for (const Digit& digit : list) {
      bounds.push_back(digit.stride);
      bounds.push_back(digit.stride * digit.radix);
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  int64_t shared = sizes_[d];
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t low = bounds[i];
    const int64_t high = bounds[i + 1];
    if (high % low != 0) return -1;
    std::pair<int64_t, int64_t> owner[2] = {{-1, 0}, {-1, 0}};  // mesh dim and place
    for (int k = 0; k < 2; ++k) {
      for (const Digit& digit : digits[k]) {
        if (low < digit.stride || digit.stride * digit.radix < high) continue;
        if (low % digit.stride != 0) return -1;
        owner[k] = {digit.mesh_dim, digit.place * (low / digit.stride)};
      }
    }
    if (owner[0].first < 0 && owner[1].first < 0) continue;
    if (owner[0].first >= 0 && owner[1].first >= 0 && owner[0] != owner[1]) return 0;
    shared /= high / low;
  }
  return shared;
}

// Along each mesh dim that cuts tensor dim d the size of a part is constant between a few coordinates: adds them to `visit`, and
// returns every size that a part has.
LayoutGeometry::Coordinates LayoutGeometry::add_breakpoints(const Layers& layout, int64_t d,
                                                            std::vector<Coordinates>& visit) const {
  Coordinates sizes = {sizes_[d]};  // every size that the mesh dims so far leave
  for (int64_t m : cutters(layout, d)) {
    const Placement& p = *layout[m];
    Coordinates next;
    for (int64_t size : sizes) {
      // A StridedShard is a chunk of each of `pieces` pieces of equal size, and one of a shorter last piece.
      const int64_t piece = p.is_strided_shard() ? chunk(size, p.split_factor(), 0).size : size;
      const int64_t pieces = piece > 0 ? size / piece : 0;
      const int64_t last = size - pieces * piece;
      Coordinates starts = {0};
      for (int64_t n : {piece, last}) {
        const int64_t each = chunk(n, mesh_shape_[m], 0).size;
        if (each == 0) continue;
        starts.push_back(n / each);      // the shorter chunk
        starts.push_back(n / each + 1);  // the first empty one
      }
      for (int64_t i : starts) {
        if (i >= mesh_shape_[m]) continue;
        visit[m].push_back(i);
        next.push_back(pieces * chunk(piece, mesh_shape_[m], i).size + chunk(last, mesh_shape_[m], i).size);
      }
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    sizes = std::move(next);
  }
  return sizes;
}

Runs LayoutGeometry::runs_of(const Layers& layout, const MeshDims& cutters, int64_t d,
                             absl::Span<const int64_t> coordinate) const {
  Runs runs;
  if (sizes_[d] > 0) runs.push_back({0, sizes_[d]});
  for (int64_t m : cutters) runs = shard_runs(runs, *layout[m], mesh_shape_[m], coordinate[m]);
  return runs;
}

LocalLayout LayoutGeometry::layout_of(const Layers& layout, absl::Span<const int64_t> coordinate) const {
  LocalLayout part;
  for (int64_t d = 0; d < tensor_ndim(); ++d) part.dims.push_back(runs_of(layout, cutters(layout, d), d, coordinate));
  return part;
}

// Without visiting all ranks: mesh dims whose cuts do not change are largest at coordinate 0; where a tensor dim is only cut
// further or less far, the numbers change at breakpoints only; elsewhere every coordinate is visited.
int64_t LayoutGeometry::received_numel_by_visiting(const Layers& before, const Layers& after) const {
  std::vector<Coordinates> visit(ndim(), {0});
  absl::InlinedVector<MeshDims, 4> old_cutters, new_cutters;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    old_cutters.push_back(cutters(before, d));
    new_cutters.push_back(cutters(after, d));
    const MeshDims& old_dims = old_cutters.back();
    const MeshDims& new_dims = new_cutters.back();
    const size_t common = std::min(old_dims.size(), new_dims.size());
    bool nested = true;
    for (size_t i = 0; i < common; ++i) nested &= old_dims[i] == new_dims[i] && *before[old_dims[i]] == *after[old_dims[i]];
    if (nested && old_dims.size() == new_dims.size()) continue;
    if (nested) {
      add_breakpoints(old_dims.size() > common ? before : after, d, visit);
      continue;
    }
    for (const MeshDims* dims : {&old_dims, &new_dims}) {
      for (int64_t m : *dims) {
        visit[m].clear();
        for (int64_t i = 0; i < mesh_shape_[m]; ++i) visit[m].push_back(i);
      }
    }
  }

  int64_t ranks = 1;
  for (Coordinates& c : visit) {
    std::sort(c.begin(), c.end());
    c.erase(std::unique(c.begin(), c.end()), c.end());
    ranks *= static_cast<int64_t>(c.size());
  }
  const bool sampled = ranks > kMaxRanksVisited;
  if (sampled) {
    for (Coordinates& c : visit) {
      const size_t stride = c.size() / 16 + 1;
      Coordinates some;
      for (size_t i = 0; i < c.size(); ++i) {
        if (i % stride == 0 || i + 1 == c.size()) some.push_back(c[i]);
      }
      c = std::move(some);
    }
  }

  int64_t most = 0;
  std::vector<size_t> index(ndim(), 0);
  Shape coordinate(ndim(), 0);
  LocalLayout source, target;
  source.dims.resize(tensor_ndim());
  target.dims.resize(tensor_ndim());
  for (bool done = false; !done;) {
    for (int64_t m = 0; m < ndim(); ++m) coordinate[m] = visit[m][index[m]];
    int64_t numel = 1;
    for (int64_t d = 0; d < tensor_ndim(); ++d) {
      target.dims[d] = runs_of(after, new_cutters[d], d, coordinate);
      numel *= total_size(target.dims[d]);
    }
    if (numel > most) {  // else it cannot receive more
      for (int64_t d = 0; d < tensor_ndim(); ++d) source.dims[d] = runs_of(before, old_cutters[d], d, coordinate);
      numel -= overlap_numel(source, target);
      most = std::max(most, numel);
    }
    done = true;
    for (int64_t m = ndim(); m-- > 0;) {
      if (++index[m] < visit[m].size()) {
        done = false;
        break;
      }
      index[m] = 0;
    }
  }
  return sampled ? std::max<int64_t>(most, 1) : most;  // nothing must be certain: then nobody sends
}

// An index is a number of mixed radix; what is left to cut is a list of stretches of digits, the most significant first.
bool LayoutGeometry::digits_of(const Layers& layout, int64_t d, Digits& digits) const {
  struct Stretch {
    int64_t stride, radix;
  };
  absl::InlinedVector<Stretch, 4> left = {{1, sizes_[d]}};
  for (int64_t m = 0; m < ndim(); ++m) {
    if (!cuts(layout, m, d)) continue;
    int64_t skip = layout[m]->is_strided_shard() ? layout[m]->split_factor() : 1;
    int64_t take = mesh_shape_[m];
    absl::InlinedVector<Stretch, 4> rest;
    for (Stretch s : left) {
      for (int64_t* wanted : {&skip, &take}) {  // from the top of the stretch
        if (*wanted == 1 || s.radix == 1 || (wanted == &take && skip > 1)) continue;
        const int64_t part = std::min(*wanted, s.radix);
        if (s.radix % part != 0 || *wanted % part != 0) return false;
        const Stretch top{s.stride * (s.radix / part), part};
        if (wanted == &take) {
          digits.push_back({m, top.stride, top.radix, take / part});  // what is left of it comes below
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

bool LayoutGeometry::same_parts(const Layers& before, const Layers& after) const {
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    Digits digits[2];
    if (!digits_of(before, d, digits[0]) || !digits_of(after, d, digits[1])) return false;
    for (Digits& list : digits) {  // stretches of digits, neighbours as one
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

int64_t LayoutGeometry::buffer_bytes(const Layers& before, const Layers& after, const MeshDims& dims, bool reduces,
                                     int64_t chunks) const {
  std::vector<int64_t> strides(ndim(), 1);
  for (int64_t m = ndim() - 1; m > 0; --m) strides[m - 1] = strides[m] * mesh_shape_[m];
  const int64_t ranks = ndim() == 0 ? 1 : strides[0] * mesh_shape_[0];
  int64_t group = 1;
  for (int64_t m : dims) group *= mesh_shape_[m];
  const auto coordinate_of = [&](int64_t rank) {
    Shape coordinate;
    for (int64_t m = 0; m < ndim(); ++m) coordinate.push_back(rank / strides[m] % mesh_shape_[m]);
    return coordinate;
  };
  const int64_t step = std::max<int64_t>(1, ranks * group / kMaxRanksVisited);
  int64_t most = 0;
  std::vector<int64_t> rounds;
  for (int64_t rank = 0; rank < ranks; rank += step) {
    // Of a reduce-scatter count what the rank sends, else what it receives.
    const Shape mine = coordinate_of(rank);
    const LocalLayout part = layout_of(reduces ? before : after, mine);
    rounds.assign(chunks, 0);
    Shape other = mine;
    for (int64_t p = 0; p < group; ++p) {
      int64_t rest = p;
      for (size_t i = dims.size(); i-- > 0;) {
        other[dims[i]] = rest % mesh_shape_[dims[i]];
        rest /= mesh_shape_[dims[i]];
      }
      if (!reduces && other == mine) continue;
      const LocalLayout peer = layout_of(reduces ? after : before, other);
      for (const Block& block : reduces ? overlap(part, peer) : overlap(peer, part)) {
        int64_t numel = 1;
        int64_t longest = 1;
        for (int64_t size : block.sizes) {
          numel *= size;
          longest = std::max(longest, size);
        }
        for (int64_t c = 0; c < std::min(chunks, longest); ++c) rounds[c] += numel / longest * chunk(longest, chunks, c).size;
      }
    }
    most = std::max(most, *std::max_element(rounds.begin(), rounds.end()));
  }
  return most * item_bytes_ * (reduces ? 1 : 2);
}

}  // namespace dtensor
