// Compares operators that move nothing with plain ATen, and checks that they communicate nothing.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <functional>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/traffic.h"

namespace dtensor::testing {

struct MeshLayout {
  std::vector<int64_t> mesh;
  Placements placements;

  DeviceMesh make_mesh() const {
    int64_t ranks = 1;
    for (const int64_t n : mesh) ranks *= n;
    return DeviceMesh(World::local(ranks), mesh);
  }
};

using OneToOne = std::function<at::Tensor(const at::Tensor&)>;

inline void compare_silently(const OneToOne& fn, const MeshLayout& layout, const std::vector<int64_t>& sizes,
                             bool keeps, bool is_cached) {
  const DeviceMesh mesh = layout.make_mesh();
  CAPTURE(mesh.to_string(), to_string(layout.placements), is_cached);
  const at::Tensor plain = at::randn(sizes, at::kDouble).requires_grad_();
  const at::Tensor x = distribute_tensor(plain.detach(), mesh, layout.placements).requires_grad_();
  if (is_cached) fn(x);
  const at::Tensor expected = fn(plain);
  at::Tensor y;
  CHECK(traffic([&] { y = fn(x); }) == Traffic{0, 0});
  CHECK(traffic([&] { y.eq(0); }) == Traffic{0, 0});  // reads it
  CHECK(difference(y.detach(), expected.detach()).value_or("") == "");
  if (keeps) CHECK(DTensor(y).placements() == layout.placements);
  if (!expected.requires_grad()) return;
  const at::Tensor seed = at::randn(expected.sizes(), at::kDouble);
  const at::Tensor seed_of_y = lay_out(seed, mesh, DTensor(y).placements());
  expected.backward(seed);
  CHECK(traffic([&] { y.backward(seed_of_y); }) == Traffic{0, 0});
  CHECK(difference(x.grad(), plain.grad()).value_or("") == "");
}

// With decisions that are made now, and that are cached.
inline void compare_silently(const OneToOne& fn, const MeshLayout& layout, const std::vector<int64_t>& sizes,
                             bool keeps) {
  for (const bool is_cached : {false, true}) compare_silently(fn, layout, sizes, keeps, is_cached);
}

}  // namespace dtensor::testing
