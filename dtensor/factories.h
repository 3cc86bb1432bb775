// New distributed tensors. No rank ever holds more than its part.
//
//   auto w = rand({50257, 512}, mesh, {Replicate(), Shard(0)}, {.requires_grad = true});
//
// `placements` {} means Replicate on every mesh dim. A Partial placement is filled so that the reduced value is the
// requested one. In an abstract world there is no data, only the layout. Source: torch.distributed.tensor.{zeros, ones,
// ...}. Errors (ValueError): no mesh, a negative size, placements that do not fit mesh or sizes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor {

struct FactoryOptions {
  // Unset: the default floating dtype; for full() that of the value, as in at::full.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  bool requires_grad = false;
};

at::Tensor zeros(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements = {},
                 const FactoryOptions& options = {});
at::Tensor ones(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements = {},
                const FactoryOptions& options = {});
at::Tensor full(const std::vector<int64_t>& sizes, const c10::Scalar& value, const DeviceMesh& mesh,
                const Placements& placements = {}, const FactoryOptions& options = {});
// Values are arbitrary, and replicas may differ until they are written.
at::Tensor empty(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements = {},
                 const FactoryOptions& options = {});

// Uniform in [0, 1) and standard normal. Values depend on the seed (torch::manual_seed, alike in every process) and on
// an element's index in the whole tensor, not on mesh or placements: replicas agree, and shards do not repeat each
// other.
at::Tensor rand(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements = {},
                const FactoryOptions& options = {});
at::Tensor randn(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements = {},
                 const FactoryOptions& options = {});

// Copies the states of the default generators of the mesh's first rank to all its ranks: that of the CPU, from which
// distributed tensors draw on every device, and that of the ranks' own device. Earlier seeds and draws of a single rank
// have no effect any more. A new world does the same. All ranks call it alike; it communicates like a
// distribute_tensor() of some kilobytes. Does nothing in an abstract world. Error (ValueError): no mesh.
void share_random_state(const DeviceMesh& mesh);

}  // namespace dtensor
