// Shared by tests of views: a tensor plain and distributed, and the meshes and layouts on which the two must agree.
#pragma once

#include <torch/types.h>

#include <utility>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::testing {

using torch::Tensor;

inline DeviceMesh mesh_of(int64_t n) { return DeviceMesh(World::local(n), {n}, {"x"}); }

inline const std::vector<DeviceMesh>& view_meshes() {
  static const std::vector<DeviceMesh> meshes = {mesh_of(2), mesh_of(3),
                                                 DeviceMesh(World::local(4), {2, 2}, {"x", "y"}),
                                                 DeviceMesh(World::local(6), {2, 3}, {"x", "y"})};
  return meshes;
}

// Equal sizes, offset and values.
inline bool same(const Tensor& distributed, const Tensor& plain) {
  if (distributed.sizes() != plain.sizes() || distributed.storage_offset() != plain.storage_offset()) return false;
  return torch::allclose(full_tensor(distributed.detach()).resolve_conj(), plain.detach().resolve_conj(), 1e-9, 1e-9,
                         true);
}

// 0.25, 0.5, 0.75...
inline Tensor numbers(const std::vector<int64_t>& shape, torch::Dtype dtype = torch::kDouble) {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return (torch::arange(1, n + 1, torch::kDouble) / 4).reshape(shape).to(dtype);
}

// The same tensor plain and distributed.
struct Pair {
  Tensor plain, distributed;
};

inline Pair make(const std::vector<int64_t>& shape, const DeviceMesh& mesh, const Placements& placements,
                 torch::Dtype dtype = torch::kDouble) {
  const Tensor t = numbers(shape, dtype);
  return {t.clone(), distribute_tensor(t, mesh, placements)};
}

// Two elements less along each dim, from `starts` on.
inline Tensor window(Tensor t, const std::vector<int64_t>& starts) {
  for (size_t d = 0; d < starts.size(); ++d) t = t.narrow(static_cast<int64_t>(d), starts[d], t.size(d) - 2);
  return t;
}

// Every layout of Shards and Replicates for a tensor of ndim dims.
inline std::vector<Placements> layouts(const DeviceMesh& mesh, int64_t ndim) {
  std::vector<Placements> all = {{}};
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    std::vector<Placements> longer;
    for (const Placements& p : all) {
      for (int64_t d = -1; d < ndim; ++d) {
        longer.push_back(p);
        longer.back().push_back(d < 0 ? Replicate() : Shard(d));
      }
    }
    all = std::move(longer);
  }
  return all;
}

}  // namespace dtensor::testing
