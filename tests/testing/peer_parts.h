// What every rank has of a tensor in each of many layouts. Of PlanPeers alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "placement/geometry.h"

namespace dtensor::testing {

// Layouts by number, and what every rank has of each. The elements that two parts share are a product over tensor dims,
// and a tensor dim knows few ways to be cut, so those are compared once.
struct PeerParts {
  PeerParts(const std::vector<int64_t>& mesh_shape, const Shape& sizes)
      : mesh_shape(mesh_shape), sizes(sizes), cuts(sizes.size()) {
    coordinates.emplace_back();
    for (int64_t n : mesh_shape) {
      std::vector<Shape> longer;
      for (const Shape& prefix : coordinates) {
        for (int64_t i = 0; i < n; ++i) {
          longer.push_back(prefix);
          longer.back().push_back(i);
        }
      }
      coordinates = std::move(longer);
    }
  }

  struct Layout {
    std::vector<size_t> cut;     // by tensor dim, into cuts
    std::vector<int64_t> numel;  // by rank
    int64_t largest = 0;
  };
  struct Cut {
    std::vector<IndexRanges> runs;                                // by rank
    absl::flat_hash_map<size_t, std::vector<int64_t>> in_common;  // other cut -> by rank
  };
  struct DimCuts {
    absl::flat_hash_map<Placements, size_t> ids;
    std::vector<Cut> cuts;
  };

  size_t id(const Placements& placements) {
    auto [it, is_new] = ids.try_emplace(placements, layouts.size());
    if (!is_new) return it->second;
    Layout layout;
    layout.numel.assign(coordinates.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      Placements of_dim = placements;
      for (Placement& p : of_dim) {
        if (!p.is_sharded_on(static_cast<int64_t>(d))) p = Replicate();
      }
      auto [cut, is_new_cut] = cuts[d].ids.try_emplace(of_dim, cuts[d].cuts.size());
      if (is_new_cut) {
        Cut& made = cuts[d].cuts.emplace_back();
        for (const Shape& at : coordinates) made.runs.push_back(local_layout(sizes, mesh_shape, of_dim, at).dims[d]);
      }
      layout.cut.push_back(cut->second);
      for (size_t r = 0; r < coordinates.size(); ++r)
        layout.numel[r] *= internal::total_size(cuts[d].cuts[cut->second].runs[r]);
    }
    layout.largest = *std::max_element(layout.numel.begin(), layout.numel.end());
    layouts.push_back(std::move(layout));
    return it->second;
  }

  const std::vector<int64_t>& in_common(size_t d, size_t a, size_t b) {
    std::vector<int64_t>& by_rank = cuts[d].cuts[a].in_common[b];
    if (by_rank.empty()) {
      for (size_t r = 0; r < coordinates.size(); ++r) {
        by_rank.push_back(internal::overlap_numel(LocalLayout{{cuts[d].cuts[a].runs[r]}, {}},
                                                  LocalLayout{{cuts[d].cuts[b].runs[r]}, {}}));
      }
    }
    return by_rank;
  }

  // Elements.
  int64_t received(size_t before, size_t after) {
    auto [it, is_new] = received_memo.try_emplace(std::make_pair(before, after), 0);
    if (!is_new) return it->second;
    std::vector<int64_t> held(coordinates.size(), 1);
    for (size_t d = 0; d < sizes.size(); ++d) {
      const std::vector<int64_t>& shared = in_common(d, layouts[before].cut[d], layouts[after].cut[d]);
      for (size_t r = 0; r < held.size(); ++r) held[r] *= shared[r];
    }
    for (size_t r = 0; r < held.size(); ++r) it->second = std::max(it->second, layouts[after].numel[r] - held[r]);
    return it->second;
  }

  std::vector<int64_t> mesh_shape;
  Shape sizes;
  std::vector<Shape> coordinates;  // of all ranks
  std::vector<DimCuts> cuts;       // by tensor dim
  std::vector<Layout> layouts;
  absl::flat_hash_map<Placements, size_t> ids;
  absl::flat_hash_map<std::pair<size_t, size_t>, int64_t> received_memo;
};

}  // namespace dtensor::testing
