// Meshes, tensors, layouts and cost models that the tests of plans share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "placement/parse_placements.h"
#include "placement/placement.h"
#include "plan/redistribute_planner.h"

namespace dtensor {

inline DeviceMesh mesh_of(std::vector<int64_t> shape, std::vector<std::string> names = {}) {
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  return DeviceMesh(World::abstract(size), std::move(shape), std::move(names));
}

inline TensorMeta meta_of(Shape sizes, c10::ScalarType dtype = at::kFloat) {
  Shape strides = row_major_strides(sizes);
  return {std::move(sizes), std::move(strides), dtype};
}

// "S(0)R".
inline Placements layout(const std::string& text) { return internal::parse_placements(text).value(); }

// All lists of `mesh_ndim` of `choices`.
inline std::vector<Placements> layouts(int64_t mesh_ndim, const std::vector<Placement>& choices) {
  std::vector<Placements> all(1);
  for (int64_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : all) {
      for (const Placement& p : choices) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Every link alike, on both levels.
inline PlanOptions links(LinkCost link, double copy_bandwidth) {
  CostModel cost;
  cost.within_node.fill(link);
  cost.between_nodes.fill(link);
  cost.copy_bandwidth = copy_bandwidth;
  return {std::make_shared<const CostModel>(cost), {}};
}

// Only bytes count.
inline PlanOptions bytes_decide() {
  return links({/*latency=*/0, /*hop_latency=*/0, /*bandwidth=*/1e9}, /*copy_bandwidth=*/1e30);
}

// The built-in costs, on one level.
inline PlanOptions one_node() {
  CostModel cost;
  cost.ranks_per_node = 1 << 20;
  return {std::make_shared<const CostModel>(cost), {}};
}

}  // namespace dtensor
