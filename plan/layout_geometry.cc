#include "plan/layout_geometry.h"

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
    bool nested = true;     // one is the other and more cuts
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

template <typename Visit>
bool LayoutGeometry::match_digits(const Layers& before, const Layers& after, int64_t d, Visit visit) const {
  Digits digits[2];
  if (!digits_of(before, d, digits[0]) || !digits_of(after, d, digits[1])) return false;
  absl::InlinedVector<int64_t, 12> bounds = {1, sizes_[d]};
  for (const Digits& list : digits) {
    for (const Digit& digit : list) {
      bounds.push_back(digit.stride);
      bounds.push_back(digit.stride * digit.radix);
    }
  }
  std::sort(bounds.begin(), bounds.end());
  bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    const int64_t low = bounds[i], high = bounds[i + 1];
    if (high % low != 0) return false;
    Place owner[2] = {{-1, 0}, {-1, 0}};
    for (int k = 0; k < 2; ++k) {
      for (const Digit& digit : digits[k]) {
        if (low < digit.stride || digit.stride * digit.radix < high) continue;
        if (low % digit.stride != 0) return false;
        owner[k] = {digit.mesh_dim, digit.place * (low / digit.stride)};
      }
    }
    if (!visit(high / low, owner[0], owner[1])) return true;
  }
  return true;
}

// Digits that both layouts tie to one coordinate agree; those tied to two do not, on some rank; what no layout ties is
// free.
int64_t LayoutGeometry::least_overlap(const Layers& before, const Layers& after, int64_t d) const {
  int64_t shared = sizes_[d];
  const bool even = match_digits(before, after, d, [&](int64_t radix, const Place& old_place, const Place& new_place) {
    if (old_place.first < 0 && new_place.first < 0) return true;
    if (old_place.first >= 0 && new_place.first >= 0 && old_place != new_place) {
      shared = 0;
      return false;
    }
    shared /= radix;
    return true;
  });
  return even ? shared : -1;
}

// Along each mesh dim that cuts tensor dim d the size of a part is constant between a few coordinates: adds them to
// `visit`, and returns every size that a part has.
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

Part LayoutGeometry::layout_of(const Layers& layout, absl::Span<const int64_t> coordinate) const {
  Part part;
  for (int64_t d = 0; d < tensor_ndim(); ++d) part.dims.push_back(runs_of(layout, cutters(layout, d), d, coordinate));
  return part;
}

// Without visiting all ranks: mesh dims whose cuts do not change are largest at coordinate 0; where a tensor dim is
// only cut further or less far, the numbers change at breakpoints only; elsewhere every coordinate is visited. False if
// there were too many, and it visited only some.
template <typename Visit>
bool LayoutGeometry::visit_ranks(const Layers& before, const Layers& after, Visit visit_rank) const {
  std::vector<Coordinates> visit(ndim(), {0});
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    const MeshDims old_dims = cutters(before, d);
    const MeshDims new_dims = cutters(after, d);
    const size_t common = std::min(old_dims.size(), new_dims.size());
    bool nested = true;
    for (size_t i = 0; i < common; ++i)
      nested &= old_dims[i] == new_dims[i] && *before[old_dims[i]] == *after[old_dims[i]];
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

  std::vector<size_t> index(ndim(), 0);
  Shape coordinate(ndim(), 0);
  for (bool done = false; !done;) {
    for (int64_t m = 0; m < ndim(); ++m) coordinate[m] = visit[m][index[m]];
    visit_rank(coordinate);
    done = true;
    for (int64_t m = ndim(); m-- > 0;) {
      if (++index[m] < visit[m].size()) {
        done = false;
        break;
      }
      index[m] = 0;
    }
  }
  return !sampled;
}

int64_t LayoutGeometry::received_numel_by_visiting(const Layers& before, const Layers& after) const {
  absl::InlinedVector<MeshDims, 4> old_cutters, new_cutters;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    old_cutters.push_back(cutters(before, d));
    new_cutters.push_back(cutters(after, d));
  }
  int64_t most = 0;
  Part source, target;
  source.dims.resize(tensor_ndim());
  target.dims.resize(tensor_ndim());
  const bool all = visit_ranks(before, after, [&](const Shape& coordinate) {
    int64_t numel = 1;
    for (int64_t d = 0; d < tensor_ndim(); ++d) {
      target.dims[d] = runs_of(after, new_cutters[d], d, coordinate);
      numel *= total_size(target.dims[d]);
    }
    if (numel <= most) return;  // it cannot receive more
    for (int64_t d = 0; d < tensor_ndim(); ++d) source.dims[d] = runs_of(before, old_cutters[d], d, coordinate);
    most = std::max(most, numel - overlap_numel(source, target));
  });
  return all ? most : std::max<int64_t>(most, 1);  // nothing must be certain: then nobody sends
}

// An index is a number of mixed radix; what is left to cut is a list of stretches of digits, the most significant
// first.
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

int64_t LayoutGeometry::packed_bytes(const Needs& n, int64_t group, bool reduces, int64_t reducing_bytes) const {
  const int64_t sent = n.wanted - n.kept;
  if (!reduces) return (n.in + n.out + sent + (n.out - n.kept)) * item_bytes_;
  return (n.in + n.out + sent + (group - 1) * n.out + group * n.out) * item_bytes_ + n.out * reducing_bytes;
}

// A rank's parts are given by digits of its coordinates (see digits_of), the same number of elements on all. What it
// sends and keeps are the elements on which two sets of digits agree. Where they tie a digit of an index to two
// coordinates, the ranks on which these are equal have them, and others have none.
int64_t LayoutGeometry::packed_bytes_if_even(const Layers& before, const Layers& after, const MeshDims& dims,
                                             int64_t group, bool reduces, int64_t reducing_bytes) const {
  using Equation = std::pair<Place, Place>;
  const auto in_group = [&](int64_t m) { return std::find(dims.begin(), dims.end(), m) != dims.end(); };
  Needs needs{1, 1, 1, 1};  // where all digits agree; `wanted` by ranks of the group that differ in what cuts
  absl::InlinedVector<Equation, 4> of_wanted, of_kept;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    int64_t old_parts = 1, new_parts = 1, my_parts = 1;  // the last: of `after`, by mesh dims that are not of the group
    bool is_plain = true;
    for (int64_t m = 0; m < ndim(); ++m) {
      if (cuts(before, m, d)) {
        old_parts *= mesh_shape_[m];
        is_plain &= before[m]->is_shard();
      }
      if (cuts(after, m, d)) {
        new_parts *= mesh_shape_[m];
        my_parts *= in_group(m) ? 1 : mesh_shape_[m];
        is_plain &= after[m]->is_shard();
      }
    }
    if (is_plain && (old_parts == 1 || new_parts == 1) &&
        sizes_[d] % (old_parts * new_parts) == 0) {  // nothing to compare
      needs.in *= sizes_[d] / old_parts;
      needs.out *= sizes_[d] / new_parts;
      needs.kept *= sizes_[d] / (old_parts * new_parts);
      needs.wanted *= sizes_[d] / old_parts / my_parts;
      continue;
    }
    const bool even =
        match_digits(before, after, d, [&](int64_t radix, const Place& old_place, const Place& new_place) {
          const bool has_old = old_place.first >= 0, has_new = new_place.first >= 0;
          const bool new_is_mine = has_new && !in_group(new_place.first);  // the same for all of the group
          if (!has_old) needs.in *= radix;
          if (!has_new) needs.out *= radix;
          if (!has_old && !has_new) needs.kept *= radix;
          if (!has_old && !new_is_mine) needs.wanted *= radix;
          if (has_old && has_new && old_place != new_place)
            (new_is_mine ? of_wanted : of_kept).emplace_back(old_place, new_place);
          return true;
        });
    if (!even) return -1;
  }
  for (int64_t m : dims) needs.wanted *= after[m]->is_sharded() ? 1 : mesh_shape_[m];
  // Whether some rank sends, and keeps nothing: its digits agree where `wanted` asks for it, but not all others.
  bool keeps_always = true;
  for (const Equation& e : of_kept) {
    absl::InlinedVector<Place, 8> equal = {e.first};
    for (size_t i = 0; i < equal.size(); ++i) {
      for (const Equation& other : of_wanted) {
        for (const auto& [a, b] : {other, Equation(other.second, other.first)}) {
          if (a == equal[i] && std::find(equal.begin(), equal.end(), b) == equal.end()) equal.push_back(b);
        }
      }
    }
    keeps_always &= std::find(equal.begin(), equal.end(), e.second) != equal.end();
  }
  int64_t most = packed_bytes(needs, group, reduces, reducing_bytes);
  if (!of_wanted.empty()) {  // a rank of which nobody wants anything
    most = std::max(most, packed_bytes({needs.in, needs.out, 0, 0}, group, reduces, reducing_bytes));
  }
  if (!keeps_always) needs.kept = 0;
  return std::max(most, packed_bytes(needs, group, reduces, reducing_bytes));
}

int64_t LayoutGeometry::wanted_by_group(const Runs& held, const Layers& after, int64_t d, const MeshDims& group_cuts,
                                        const MeshDims& other_cuts, const Shape& coordinate) const {
  if (group_cuts.empty() || other_cuts.empty() || other_cuts.back() < group_cuts.front()) {
    // What the other cuts leave, all of the group together want.
    if (other_cuts.empty()) return total_size(held);
    Part source, target;
    source.dims.push_back(held);
    target.dims.push_back(runs_of(after, other_cuts, d, coordinate));
    return overlap_numel(source, target);
  }
  MeshDims all = cutters(after, d);
  int64_t members = 1;
  for (int64_t m : group_cuts) members *= mesh_shape_[m];
  Part source, target;
  source.dims.push_back(held);
  target.dims.resize(1);
  Shape other(coordinate.begin(), coordinate.end());
  int64_t wanted = 0;
  for (int64_t p = 0; p < members; ++p) {
    int64_t rest = p;
    for (int64_t m : group_cuts) {
      other[m] = rest % mesh_shape_[m];
      rest /= mesh_shape_[m];
    }
    target.dims[0] = runs_of(after, all, d, other);
    wanted += overlap_numel(source, target);
  }
  return wanted;
}

int64_t LayoutGeometry::packed_bytes(const Layers& before, const Layers& after, const MeshDims& dims, bool reduces,
                                     int64_t reducing_bytes, int64_t chunks) const {
  int64_t group = 1;
  for (int64_t m : dims) group *= mesh_shape_[m];
  const auto in_group = [&](int64_t m) { return std::find(dims.begin(), dims.end(), m) != dims.end(); };
  if (chunks == 1) {
    if (const int64_t bytes = packed_bytes_if_even(before, after, dims, group, reduces, reducing_bytes); bytes >= 0)
      return bytes;
    int64_t copies = 1;  // ranks of a group that want the same
    for (int64_t m : dims) copies *= after[m]->is_sharded() ? 1 : mesh_shape_[m];
    absl::InlinedVector<MeshDims, 4> old_cuts, new_cuts, group_cuts(tensor_ndim()), other_cuts(tensor_ndim());
    for (int64_t d = 0; d < tensor_ndim(); ++d) {
      old_cuts.push_back(cutters(before, d));
      new_cuts.push_back(cutters(after, d));
      for (int64_t m : new_cuts[d]) (in_group(m) ? group_cuts : other_cuts)[d].push_back(m);
    }
    int64_t most = 0;
    Part source, target;
    source.dims.resize(tensor_ndim());
    target.dims.resize(tensor_ndim());
    visit_ranks(before, after, [&](const Shape& coordinate) {
      Needs needs{1, 1, 1, copies};
      for (int64_t d = 0; d < tensor_ndim(); ++d) {
        source.dims[d] = runs_of(before, old_cuts[d], d, coordinate);
        target.dims[d] = runs_of(after, new_cuts[d], d, coordinate);
        needs.in *= total_size(source.dims[d]);
        needs.out *= total_size(target.dims[d]);
        needs.wanted *= wanted_by_group(source.dims[d], after, d, group_cuts[d], other_cuts[d], coordinate);
      }
      needs.kept = overlap_numel(source, target);
      most = std::max(most, packed_bytes(needs, group, reduces, reducing_bytes));
    });
    return most;
  }

  std::vector<int64_t> strides(ndim(), 1);
  for (int64_t m = ndim() - 1; m > 0; --m) strides[m - 1] = strides[m] * mesh_shape_[m];
  const int64_t ranks = ndim() == 0 ? 1 : strides[0] * mesh_shape_[0];
  const int64_t step = std::max<int64_t>(1, ranks * group / kMaxRanksVisited);
  const int64_t own_bytes = reduces ? item_bytes_ + reducing_bytes : 0;
  int64_t most = 0;
  std::vector<int64_t> rounds;  // bytes of buffers
  const auto add = [&](const Part& source, const Part& target, int64_t bytes) {
    for (const Block& block : overlap(source, target)) {
      int64_t numel = 1;
      int64_t longest = 1;
      for (int64_t size : block.sizes) {
        numel *= size;
        longest = std::max(longest, size);
      }
      for (int64_t c = 0; c < std::min(chunks, longest); ++c)
        rounds[c] += numel / longest * chunk(longest, chunks, c).size * bytes;
    }
  };
  for (int64_t rank = 0; rank < ranks; rank += step) {
    Shape mine;
    for (int64_t m = 0; m < ndim(); ++m) mine.push_back(rank / strides[m] % mesh_shape_[m]);
    const Part old_part = layout_of(before, mine), new_part = layout_of(after, mine);
    rounds.assign(chunks, 0);
    if (reduces) add(old_part, new_part, own_bytes);
    Shape other = mine;
    for (int64_t p = 0; p < group; ++p) {
      int64_t rest = p;
      for (size_t i = dims.size(); i-- > 0;) {
        other[dims[i]] = rest % mesh_shape_[dims[i]];
        rest /= mesh_shape_[dims[i]];
      }
      if (other == mine) continue;
      add(old_part, layout_of(after, other), item_bytes_);
      // What arrives to be reduced is copied once more.
      add(layout_of(before, other), new_part, item_bytes_ * (reduces ? 2 : 1));
    }
    int64_t parts = 0;
    for (const Part* part : {&old_part, &new_part}) {
      int64_t numel = 1;
      for (const Runs& runs : part->dims) numel *= total_size(runs);
      parts += numel * item_bytes_;
    }
    most = std::max(most, parts + *std::max_element(rounds.begin(), rounds.end()));
  }
  return most;
}

}  // namespace dtensor
