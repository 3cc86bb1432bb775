// The parameters of one fully_shard(): gathered together when an operator computes with the first of them.
//
// The gathered copies are cached layouts (layout_cache/cached_layouts.h) of the parameters, so that a write to a
// parameter drops its copy, and operators below autograd take them instead of the parameters: autograd's graph has
// the sharded parameters only. They count in the memory meter, but not in the limit of remembered_layouts.h. What is
// gathered and dropped, and when, follows from the order of the operators alone.
//
// Source: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, VLDB 2023.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dtensor/gradients/leaf_group.h"
#include "placement/placement.h"

namespace dtensor::internal {

class ParameterGroup {
 public:
  // `parameters`: sharded over `mesh_dim` of one mesh. `is_kept`: the copies stay beside those of other groups, until
  // the end of backward.
  ParameterGroup(std::shared_ptr<const LeafGroup> parameters, int64_t mesh_dim, bool is_kept)
      : parameters_(std::move(parameters)), mesh_dim_(mesh_dim), is_kept_(is_kept) {}

  bool is_kept() const { return is_kept_; }

  // `t`, a parameter of the group or a view of one, replicated on the group's mesh dim and as it is on the others. If
  // it is not gathered yet, gathers all parameters of the group in one collective; a group that is not kept drops the
  // copies of others on these ranks that are not kept either, before. Undefined, and nothing done: `t` is not sharded
  // on that mesh dim, or is no view of a gathered parameter, as where user code may write to the parts. Only to be
  // read.
  at::Tensor gathered(const at::Tensor& t);
  // Drops the copies.
  void drop();

 private:
  Placements gathered_layout(const at::Tensor& t) const;
  void gather(const at::Tensor& first);

  const std::shared_ptr<const LeafGroup> parameters_;
  const int64_t mesh_dim_;
  const bool is_kept_;
};

// The group that `t`, or the tensor that it is a view of, is a parameter of; null: none. REQUIRES: is_dtensor(t).
std::shared_ptr<ParameterGroup> parameter_group_of(const at::Tensor& t);

}  // namespace dtensor::internal
