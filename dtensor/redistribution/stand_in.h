// Tensors that stand for the plain parts of a rank, in a world without data (World::abstract, World::meta).
//
// Code between to_local() and from_local() computes with parts, of which such a world has none. A stand-in has the
// sizes of the part of the rank with the largest one, and is distributed over a mesh of one rank: operators with it
// have their shapes, work and memory as those of that rank, and no data. Like a plain tensor it cannot meet one of the
// whole mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "plan/spec.h"

namespace dtensor::internal {

// A new one, of a rank of `mesh`. REQUIRES: its world has no data.
at::Tensor make_stand_in(const DeviceMesh& mesh, const std::vector<int64_t>& sizes, at::ScalarType dtype);

// to_local(), and in a world without data one stand-in, likewise differentiable. REQUIRES: the parts are there.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const Placements& grad_placements);
// from_local(), of a dense tensor of `sizes` without Partials, for what parts_of() and operators gave.
at::Tensor from_parts_of(const std::vector<at::Tensor>& parts, const DeviceMesh& mesh, const Placements& placements,
                         const std::vector<int64_t>& sizes);

// The rank that has the i-th part of parts_of().
int64_t rank_of_part(const DeviceMesh& mesh, size_t i);

}  // namespace dtensor::internal
