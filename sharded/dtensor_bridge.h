// Conversion between sharded tensors and DTensors. Differentiable: the local shards get gradients.
//
//   at::Tensor d = to_dtensor(st);                   // chunks of dim 0, one per rank: Shard(0), without copies
//   ShardedTensor st2 = from_dtensor(d);             // and back
//   to_dtensor(st, mesh, {Replicate(), dtensor::Shard(1)});   // anything to anything: one exchange
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "mesh/device_mesh.h"
#include "placement/placement.h"
#include "sharded/sharded_tensor.h"

namespace dtensor::sharded {

// The mesh and placements equivalent to the metadata, with every shard on its rank: for one chunk per rank, the ranks
// in the order of the chunks and Shard(dim); for a grid of chunks, a mesh with a dim for each sharded dim. nullopt:
// there are none, since a rank has several shards or none, or they are not chunks.
std::optional<std::pair<DeviceMesh, Placements>> placements_of(const ShardedTensor& st);

// No communication and no copies. Error (ValueError): placements_of() has none; the text names the alternative call.
at::Tensor to_dtensor(const ShardedTensor& st);
// Any layout; collective.
at::Tensor to_dtensor(const ShardedTensor& st, const DeviceMesh& mesh, const Placements& placements);

// With the parts as shards, no copies: a chunk spec where one tensor dim is cut by a mesh of one dim, else a list of
// boxes. Errors (ValueError): a tensor that is replicated, or Partial, or in several pieces per rank: redistribute it,
// or pass a spec.
ShardedTensor from_dtensor(const at::Tensor& tensor);
// Any spec; collective. The group is that of all ranks by default.
ShardedTensor from_dtensor(const at::Tensor& tensor, const AnyShardingSpec& spec, const ProcessGroup& group = {});

}  // namespace dtensor::sharded
