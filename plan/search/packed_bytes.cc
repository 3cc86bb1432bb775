// LayoutGeometry::packed_bytes(): from digits if cuts are even, else by visiting ranks, and for several rounds block by
// block.
#include <algorithm>
#include <utility>

#include "plan/search/even_cuts.h"
#include "plan/search/layout_geometry.h"
#include "plan/search/representative_ranks.h"

namespace dtensor::internal {
namespace {

using Equation = std::pair<Place, Place>;
using Equations = absl::InlinedVector<Equation, 4>;

// The arguments of packed_bytes().
struct Exchange {
  const LayoutGeometry& geometry;
  const PlacementPointers& before;
  const PlacementPointers& after;
  const MeshDims& dims;
  bool reduces;
  int64_t reducing_bytes;
  int64_t group = 1;  // ranks that communicate with each other

  bool is_along(int64_t m) const { return std::find(dims.begin(), dims.end(), m) != dims.end(); }
  // Number of ranks in a group that need the same.
  int64_t copies() const {
    int64_t copies = 1;
    for (int64_t m : dims) copies *= after[m]->is_sharded() ? 1 : geometry.mesh_size(m);
    return copies;
  }
};

// The terms of packed_bytes(), in elements of one rank.
struct Needs {
  int64_t in = 1, out = 1;
  int64_t kept = 1;    // of `out`, the elements that it already has
  int64_t wanted = 1;  // of `in`, needed by all of its group, including itself
};

int64_t bytes_of(const Exchange& x, const Needs& n) {
  const int64_t item_bytes = x.geometry.item_bytes();
  const int64_t sent = n.wanted - n.kept;
  if (!x.reduces) return (n.in + n.out + sent + (n.out - n.kept)) * item_bytes;
  return (n.in + n.out + sent + (x.group - 1) * n.out + x.group * n.out) * item_bytes + n.out * x.reducing_bytes;
}

// Multiplies in the factors of the two layouts for tensor dim d if all digits agree. The digits that must be equal for
// that go into `of_wanted`, which decides whether any rank needs the rank's elements, and into `of_kept`. False if some
// cut is uneven.
bool add_dim_if_even(const Exchange& x, int64_t d, Needs& needs, Equations& of_wanted, Equations& of_kept) {
  const LayoutGeometry& g = x.geometry;
  int64_t old_parts = 1, new_parts = 1, my_parts = 1;  // the last: of `after`, by mesh dims outside the group
  bool is_plain = true;
  for (int64_t m = 0; m < g.ndim(); ++m) {
    if (g.cuts(x.before, m, d)) {
      old_parts *= g.mesh_size(m);
      is_plain &= x.before[m]->is_shard();
    }
    if (g.cuts(x.after, m, d)) {
      new_parts *= g.mesh_size(m);
      my_parts *= x.is_along(m) ? 1 : g.mesh_size(m);
      is_plain &= x.after[m]->is_shard();
    }
  }
  const int64_t size = g.size(d);
  if (is_plain && (old_parts == 1 || new_parts == 1) && size % (old_parts * new_parts) == 0) {  // nothing to compare
    needs.in *= size / old_parts;
    needs.out *= size / new_parts;
    needs.kept *= size / (old_parts * new_parts);
    needs.wanted *= size / old_parts / my_parts;
    return true;
  }
  return match_digits(g, x.before, x.after, d, [&](int64_t radix, const Place& old_place, const Place& new_place) {
    const bool has_old = old_place.first >= 0, has_new = new_place.first >= 0;
    const bool new_is_mine = has_new && !x.is_along(new_place.first);  // the same for all of the group
    if (!has_old) needs.in *= radix;
    if (!has_new) needs.out *= radix;
    if (!has_old && !has_new) needs.kept *= radix;
    if (!has_old && !new_is_mine) needs.wanted *= radix;
    if (has_old && has_new && old_place != new_place)
      (new_is_mine ? of_wanted : of_kept).emplace_back(old_place, new_place);
    return true;
  });
}

// Whether `equation` holds wherever all of `given` do.
bool follows_from(const Equations& given, const Equation& equation) {
  absl::InlinedVector<Place, 8> equal = {equation.first};
  for (size_t i = 0; i < equal.size(); ++i) {
    for (const Equation& other : given) {
      for (const auto& [a, b] : {other, Equation(other.second, other.first)}) {
        if (a == equal[i] && std::find(equal.begin(), equal.end(), b) == equal.end()) equal.push_back(b);
      }
    }
  }
  return std::find(equal.begin(), equal.end(), equation.second) != equal.end();
}

// -1 if some cut is uneven. A rank's parts are given by digits of its coordinates (see digits_of), with the same number
// of elements on all ranks. The rank sends and keeps the elements on which two sets of digits agree. If a digit of an
// index is tied to two coordinates, the ranks on which these are equal have such elements, and others have none.
int64_t packed_if_even(const Exchange& x) {
  Needs needs;  // if all digits agree; `wanted` by ranks of the group that differ in the cutting dims
  Equations of_wanted, of_kept;
  for (int64_t d = 0; d < x.geometry.tensor_ndim(); ++d) {
    if (!add_dim_if_even(x, d, needs, of_wanted, of_kept)) return -1;
  }
  needs.wanted *= x.copies();
  int64_t most = bytes_of(x, needs);
  if (!of_wanted.empty()) {  // a rank whose elements no rank needs
    most = std::max(most, bytes_of(x, {needs.in, needs.out, 0, 0}));
  }
  // Whether some rank sends, and keeps nothing: its digits agree where `wanted` requires it, but not all others.
  const bool keeps_always =
      std::all_of(of_kept.begin(), of_kept.end(), [&](const Equation& e) { return follows_from(of_wanted, e); });
  if (!keeps_always) needs.kept = 0;
  return std::max(most, bytes_of(x, needs));
}

// The mesh dims that cut each tensor dim.
struct Cutters {
  using List = absl::InlinedVector<MeshDims, 4>;
  List before, after;
  List along, others;  // of `after`: along the exchange, and the others
};

Cutters cutters_of(const Exchange& x) {
  Cutters cutters;
  for (int64_t d = 0; d < x.geometry.tensor_ndim(); ++d) {
    cutters.before.push_back(x.geometry.cutters(x.before, d));
    cutters.after.push_back(x.geometry.cutters(x.after, d));
    MeshDims& along = cutters.along.emplace_back();
    MeshDims& others = cutters.others.emplace_back();
    for (int64_t m : cutters.after[d]) (x.is_along(m) ? along : others).push_back(m);
  }
  return cutters;
}

// The elements of tensor dim d that the rank has and its group needs.
int64_t wanted_by_group(const Exchange& x, const IndexRanges& held, int64_t d, const Cutters& cutters,
                        const Shape& coordinate) {
  const MeshDims& along = cutters.along[d];
  const MeshDims& others = cutters.others[d];
  LocalLayout source, target;
  source.dims.push_back(held);
  if (along.empty() || others.empty() || others.back() < along.front()) {
    // The group as a whole needs all that the other cuts leave.
    if (others.empty()) return total_size(held);
    target.dims.push_back(x.geometry.runs_of(x.after, others, d, coordinate));
    return overlap_numel(source, target);
  }
  int64_t members = 1;
  for (int64_t m : along) members *= x.geometry.mesh_size(m);
  target.dims.resize(1);
  Shape other(coordinate.begin(), coordinate.end());
  int64_t wanted = 0;
  for (int64_t p = 0; p < members; ++p) {
    int64_t rest = p;
    for (int64_t m : along) {
      other[m] = rest % x.geometry.mesh_size(m);
      rest /= x.geometry.mesh_size(m);
    }
    target.dims[0] = x.geometry.runs_of(x.after, cutters.after[d], d, other);
    wanted += overlap_numel(source, target);
  }
  return wanted;
}

int64_t packed_by_visiting(const Exchange& x) {
  const int64_t ndim = x.geometry.tensor_ndim();
  const Cutters cutters = cutters_of(x);
  const int64_t copies = x.copies();
  int64_t most = 0;
  LocalLayout source, target;
  source.dims.resize(ndim);
  target.dims.resize(ndim);
  for_each_rank(representative_ranks(x.geometry, x.before, x.after), [&](const Shape& coordinate) {
    Needs needs{1, 1, 1, copies};
    for (int64_t d = 0; d < ndim; ++d) {
      source.dims[d] = x.geometry.runs_of(x.before, cutters.before[d], d, coordinate);
      target.dims[d] = x.geometry.runs_of(x.after, cutters.after[d], d, coordinate);
      needs.in *= total_size(source.dims[d]);
      needs.out *= total_size(target.dims[d]);
      needs.wanted *= wanted_by_group(x, source.dims[d], d, cutters, coordinate);
    }
    needs.kept = overlap_numel(source, target);
    most = std::max(most, bytes_of(x, needs));
  });
  return most;
}

// Adds to each round its share of the elements that two parts have in common, with `item_bytes` per element.
void add_rounds(const LocalLayout& source, const LocalLayout& target, int64_t item_bytes,
                std::vector<int64_t>& rounds) {
  const auto chunks = static_cast<int64_t>(rounds.size());
  for (const Block& block : overlap(source, target)) {
    int64_t numel = 1;
    int64_t longest = 1;
    for (int64_t size : block.sizes) {
      numel *= size;
      longest = std::max(longest, size);
    }
    for (int64_t c = 0; c < std::min(chunks, longest); ++c)
      rounds[c] += numel / longest * chunk(longest, chunks, c).size * item_bytes;
  }
}

// The memory of the rank at `mine` in its largest round, with its parts.
int64_t packed_in_rounds_at(const Exchange& x, const Shape& mine, std::vector<int64_t>& rounds) {
  const LayoutGeometry& g = x.geometry;
  const LocalLayout old_part = g.part_of(x.before, mine), new_part = g.part_of(x.after, mine);
  std::fill(rounds.begin(), rounds.end(), 0);
  if (x.reduces) add_rounds(old_part, new_part, g.item_bytes() + x.reducing_bytes, rounds);
  Shape other = mine;
  for (int64_t p = 0; p < x.group; ++p) {
    int64_t rest = p;
    for (size_t i = x.dims.size(); i-- > 0;) {
      other[x.dims[i]] = rest % g.mesh_size(x.dims[i]);
      rest /= g.mesh_size(x.dims[i]);
    }
    if (other == mine) continue;
    add_rounds(old_part, g.part_of(x.after, other), g.item_bytes(), rounds);
    // A received addend is copied once more for the reduction.
    add_rounds(g.part_of(x.before, other), new_part, g.item_bytes() * (x.reduces ? 2 : 1), rounds);
  }
  const int64_t parts = (old_part.numel() + new_part.numel()) * g.item_bytes();
  return parts + *std::max_element(rounds.begin(), rounds.end());
}

int64_t packed_in_rounds(const Exchange& x, int64_t chunks) {
  const int64_t ndim = x.geometry.ndim();
  std::vector<int64_t> strides(ndim, 1);
  for (int64_t m = ndim - 1; m > 0; --m) strides[m - 1] = strides[m] * x.geometry.mesh_size(m);
  const int64_t ranks = ndim == 0 ? 1 : strides[0] * x.geometry.mesh_size(0);
  const int64_t step = std::max<int64_t>(1, ranks * x.group / kMaxRanksVisited);
  std::vector<int64_t> rounds(chunks);
  int64_t most = 0;
  for (int64_t rank = 0; rank < ranks; rank += step) {
    Shape mine;
    for (int64_t m = 0; m < ndim; ++m) mine.push_back(rank / strides[m] % x.geometry.mesh_size(m));
    most = std::max(most, packed_in_rounds_at(x, mine, rounds));
  }
  return most;
}

}  // namespace

int64_t LayoutGeometry::packed_bytes(const PlacementPointers& before, const PlacementPointers& after,
                                     const MeshDims& dims, bool reduces, int64_t reducing_bytes, int64_t chunks) const {
  Exchange exchange{*this, before, after, dims, reduces, reducing_bytes};
  for (int64_t m : dims) exchange.group *= mesh_shape_[m];
  if (chunks > 1) return packed_in_rounds(exchange, chunks);
  const int64_t bytes = packed_if_even(exchange);
  return bytes >= 0 ? bytes : packed_by_visiting(exchange);
}

}  // namespace dtensor::internal
