#include "plan/search/representative_ranks.h"

#include <algorithm>

namespace dtensor::internal {
namespace {

void sort_unique(Coordinates& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

// Along each mesh dim that cuts tensor dim d the size of a part is constant between a few coordinates: adds them to
// `visit`, and returns all sizes of parts.
Coordinates add_breakpoints(const LayoutGeometry& geometry, const PlacementPointers& layout, int64_t d,
                            std::vector<Coordinates>& visit) {
  Coordinates sizes = {geometry.size(d)};  // all sizes after the mesh dims so far
  for (int64_t m : geometry.cutters(layout, d)) {
    const Placement& p = *layout[m];
    const int64_t n = geometry.mesh_size(m);
    Coordinates next;
    for (int64_t size : sizes) {
      // A StridedShard takes a chunk of each of `pieces` pieces of equal size, and one of a shorter last piece.
      const int64_t piece = p.is_strided_shard() ? chunk(size, p.split_factor(), 0).size : size;
      const int64_t pieces = piece > 0 ? size / piece : 0;
      const int64_t last = size - pieces * piece;
      Coordinates starts = {0};
      for (int64_t length : {piece, last}) {
        const int64_t each = chunk(length, n, 0).size;
        if (each == 0) continue;
        starts.push_back(length / each);      // the shorter chunk
        starts.push_back(length / each + 1);  // the first empty one
      }
      for (int64_t i : starts) {
        if (i >= n) continue;
        visit[m].push_back(i);
        next.push_back(pieces * chunk(piece, n, i).size + chunk(last, n, i).size);
      }
    }
    sort_unique(next);
    sizes = std::move(next);
  }
  return sizes;
}

// About 16 of them, including the last.
Coordinates some_of(const Coordinates& list) {
  const size_t stride = list.size() / 16 + 1;
  Coordinates some;
  for (size_t i = 0; i < list.size(); ++i) {
    if (i % stride == 0 || i + 1 == list.size()) some.push_back(list[i]);
  }
  return some;
}

}  // namespace

int64_t longest_part(const LayoutGeometry& geometry, const PlacementPointers& layout, int64_t d) {
  std::vector<Coordinates> unused(geometry.ndim());
  const Coordinates sizes = add_breakpoints(geometry, layout, d, unused);
  return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

// Mesh dims whose cuts do not change have the largest parts at coordinate 0; if a tensor dim is only cut more or less
// finely, the numbers change at breakpoints only; otherwise every coordinate is visited.
RepresentativeRanks representative_ranks(const LayoutGeometry& geometry, const PlacementPointers& before,
                                         const PlacementPointers& after) {
  RepresentativeRanks ranks{std::vector<Coordinates>(geometry.ndim(), {0})};
  for (int64_t d = 0; d < geometry.tensor_ndim(); ++d) {
    const MeshDims old_dims = geometry.cutters(before, d);
    const MeshDims new_dims = geometry.cutters(after, d);
    const size_t common = std::min(old_dims.size(), new_dims.size());
    bool nested = true;
    for (size_t i = 0; i < common; ++i)
      nested &= old_dims[i] == new_dims[i] && *before[old_dims[i]] == *after[old_dims[i]];
    if (nested && old_dims.size() == new_dims.size()) continue;
    if (nested) {
      add_breakpoints(geometry, old_dims.size() > common ? before : after, d, ranks.along);
      continue;
    }
    for (const MeshDims* dims : {&old_dims, &new_dims}) {
      for (int64_t m : *dims) {
        ranks.along[m].clear();
        for (int64_t i = 0; i < geometry.mesh_size(m); ++i) ranks.along[m].push_back(i);
      }
    }
  }

  int64_t number = 1;
  for (Coordinates& list : ranks.along) {
    sort_unique(list);
    number *= static_cast<int64_t>(list.size());
  }
  ranks.all = number <= kMaxRanksVisited;
  if (!ranks.all) {
    for (Coordinates& list : ranks.along) list = some_of(list);
  }
  return ranks;
}

}  // namespace dtensor::internal
