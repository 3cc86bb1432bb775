// LayoutGeometry::part_bytes(), and received_bytes(): dim by dim if cuts are even or nested, else by visiting ranks.
#include <algorithm>

#include "plan/search/even_cuts.h"
#include "plan/search/layout_geometry.h"
#include "plan/search/representative_ranks.h"

namespace dtensor::internal {
namespace {

// The overlap of a rank's two parts in tensor dim d, on the rank with the least. -1 if the cuts are uneven. Digits that
// both layouts tie to one coordinate agree; those tied to two differ on some rank; untied ones are free.
int64_t least_overlap(const LayoutGeometry& geometry, const PlacementPointers& before, const PlacementPointers& after,
                      int64_t d) {
  int64_t shared = geometry.size(d);
  const bool even =
      match_digits(geometry, before, after, d, [&](int64_t radix, const Place& old_place, const Place& new_place) {
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

// The counts for one tensor dim.
struct Received {
  int64_t wanted = 0;  // elements of a new part
  int64_t kept = 0;    // of them, those in the old part, on the rank that keeps least
};

// False if ranks have to be visited.
bool received_of_dim(const LayoutGeometry& geometry, const PlacementPointers& before, const PlacementPointers& after,
                     int64_t d, Received& received) {
  const int64_t ndim = geometry.ndim();
  int64_t old_size = geometry.size(d);
  int64_t new_size = geometry.size(d);
  bool even = true;
  bool nested = true;     // one layout is the other with further cuts
  bool disjoint = false;  // on some rank
  bool plain = true;
  int64_t a = 0;
  int64_t b = 0;
  for (;;) {
    while (a < ndim && !geometry.cuts(before, a, d)) ++a;
    while (b < ndim && !geometry.cuts(after, b, d)) ++b;
    if (a == ndim && b == ndim) break;
    if (nested && a < ndim && b < ndim && (a != b || !(*before[a] == *after[b]))) {
      nested = false;
      // Chunks along two mesh dims: one rank has the first and wants the last.
      disjoint = a != b && before[a]->is_shard() && after[b]->is_shard();
    }
    if (a < ndim) {
      old_size = first_part(old_size, *before[a], geometry.mesh_size(a), even);
      ++a;
    } else {
      plain = false;
    }
    if (b < ndim) {
      new_size = first_part(new_size, *after[b], geometry.mesh_size(b), even);
      ++b;
    } else {
      plain = false;
    }
  }
  const bool unchanged = nested && plain;  // largest on the first rank, whatever the other dims do
  if (!even && !unchanged) return false;
  received = {new_size, 0};
  if (nested) {
    received.kept = std::min(old_size, new_size);
  } else if (!disjoint) {
    received.kept = least_overlap(geometry, before, after, d);
  }
  return received.kept >= 0;
}

// In elements.
int64_t received_by_visiting(const LayoutGeometry& geometry, const PlacementPointers& before,
                             const PlacementPointers& after) {
  const int64_t ndim = geometry.tensor_ndim();
  absl::InlinedVector<MeshDims, 4> old_cutters, new_cutters;
  for (int64_t d = 0; d < ndim; ++d) {
    old_cutters.push_back(geometry.cutters(before, d));
    new_cutters.push_back(geometry.cutters(after, d));
  }
  int64_t most = 0;
  LocalLayout source, target;
  source.dims.resize(ndim);
  target.dims.resize(ndim);
  const RepresentativeRanks ranks = representative_ranks(geometry, before, after);
  for_each_rank(ranks, [&](const Shape& coordinate) {
    int64_t numel = 1;
    for (int64_t d = 0; d < ndim; ++d) {
      target.dims[d] = geometry.runs_of(after, new_cutters[d], d, coordinate);
      numel *= total_size(target.dims[d]);
    }
    if (numel <= most) return;  // it cannot receive more
    for (int64_t d = 0; d < ndim; ++d) source.dims[d] = geometry.runs_of(before, old_cutters[d], d, coordinate);
    most = std::max(most, numel - overlap_numel(source, target));
  });
  return ranks.all ? most
                   : std::max<int64_t>(most, 1);  // being nonzero must be certain: otherwise there is no collective
}

}  // namespace

int64_t LayoutGeometry::part_bytes(const PlacementPointers& layout) const {
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
    bytes *= even || !strided ? sizes[d] : longest_part(*this, layout, d);
  }
  return bytes;
}

int64_t LayoutGeometry::received_bytes(const PlacementPointers& before, const PlacementPointers& after) const {
  int64_t wanted = 1;
  int64_t kept = 1;
  for (int64_t d = 0; d < tensor_ndim(); ++d) {
    Received dim;
    if (!received_of_dim(*this, before, after, d, dim)) return received_by_visiting(*this, before, after) * item_bytes_;
    wanted *= dim.wanted;
    kept *= dim.kept;
  }
  return (wanted - kept) * item_bytes_;
}

}  // namespace dtensor::internal
