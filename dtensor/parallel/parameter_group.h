// The parameters of one fully_shard(): gathered together when an operator computes with the first of them.
//
// The gathered copies are cached layouts (layout_cache/cached_layouts.h) of the parameters, so that a write to a
// parameter drops its copy, and operators below autograd take them instead of the parameters: autograd's graph has
// the sharded parameters only. They count in the memory meter, but not in the limit of remembered_layouts.h. What is
// gathered and dropped, and when, follows from the order of the operators alone.
//
// With mixed precision each rank casts its parts first, and the copies are in param_dtype. A cast of a parameter to
// that dtype has the same gathered copy, so that the casts of autocast gather nothing by themselves.
//
// Source: Zhao et al., PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel, VLDB 2023.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/gradients/leaf_group.h"
#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::internal {

class GatherOrder;

class ParameterGroup {
 public:
  // `parameters`: sharded over `mesh_dim` of one mesh. Copies stay beside those of other groups, until the end of
  // backward, where the group's module contains other groups, or without `reshard_after_forward`. `param_dtype`: that
  // floating-point parameters are gathered in; nullopt: their own.
  ParameterGroup(std::shared_ptr<const LeafGroup> parameters, int64_t mesh_dim, bool contains_groups,
                 bool reshard_after_forward, std::optional<c10::ScalarType> param_dtype);

  int64_t number() const { return number_; }  // larger than that of groups made before
  bool contains_groups() const { return contains_groups_; }
  bool is_kept() const { return is_kept_; }

  // `t`, a parameter of the group, a cast of one, or a view of either, replicated on the group's mesh dim and as it is
  // on the others; its values are rounded to param_dtype. If it is not gathered yet, gathers all parameters of the
  // group in one collective; a group that is not kept drops the copies of others on these ranks that are not kept
  // either, before. With an order also begins to gather the next group. Undefined, and nothing done: `t` is not sharded
  // on that mesh dim, or has no values of a gathered parameter, as where user code may write to the parts, or a cast
  // where the parameter was written to after it. Of a parameter in host memory the result is a copy on the GPUs in
  // these cases. Only to be read. Errors: those of the gather, after which the group has no copies.
  at::Tensor gathered(const at::Tensor& t);
  // `to` was cast from `from`, of the group: if it has param_dtype, or had it before, it is of the group, too.
  void add_cast(const at::Tensor& from, const at::Tensor& to);
  // Drops the copies.
  void drop();
  // nullptr: no group is gathered ahead.
  void set_order(std::shared_ptr<GatherOrder> order) { order_ = std::move(order); }

 private:
  // On a mesh dim of size 1 only parameters in host memory, which get to the GPU so.
  bool is_gathered_on(const DeviceMesh& mesh, const at::Tensor& t) const;
  at::Tensor find_gathered(const at::Tensor& t);
  at::Tensor find_or_gather(const at::Tensor& own, const Placements& to);
  Placements gathered_layout(const at::Tensor& t) const;
  c10::ScalarType gathered_dtype(c10::ScalarType dtype) const;
  // A handle of the memory of the parameter that `t` is a view or a cast of, in the dtype that is gathered: what cached
  // layouts are found by. Undefined: a cast that has not the parameter's present values.
  at::Tensor in_parameter(const at::Tensor& t) const;
  std::string module() const;  // "'blocks.0'", of all parameters
  // On `mesh`, those that are not gathered. `ahead`: returns while they are arriving, where the transport can do that.
  void gather(const DeviceMesh& mesh, bool ahead);
  void gather_ahead();
  // Those of other groups that are not kept, and not `next`.
  void drop_others(const DeviceMesh& mesh, const ParameterGroup* next);

  const int64_t number_;
  const std::shared_ptr<const LeafGroup> parameters_;
  const int64_t mesh_dim_;
  const bool contains_groups_, is_kept_;
  const std::optional<c10::ScalarType> param_dtype_;
  std::shared_ptr<GatherOrder> order_;
};

// The order in which the groups of a model are gathered ahead: when operators begin to take parameters of a group, or
// it is gathered, the gather of the next one begins, in forward in this order, in backward in the reverse one.
class GatherOrder {
 public:
  explicit GatherOrder(std::vector<std::weak_ptr<ParameterGroup>> groups) : groups_(std::move(groups)) {}
  // An operator takes a parameter of `group`. Whether the one before took one of another group, or in the other
  // direction.
  bool begins(const ParameterGroup& group);
  // nullptr: it is the last one.
  std::shared_ptr<ParameterGroup> next_of(const ParameterGroup& group) const;

 private:
  const std::vector<std::weak_ptr<ParameterGroup>> groups_;
  const ParameterGroup* used_ = nullptr;  // by the last operator; only to compare
  bool backward_ = false;                 // in backward, a part computed again by checkpoint() included
};

// The group that `t`, or the tensor that it is a view of, is a parameter of, or a cast of one; null: none. REQUIRES:
// is_dtensor(t).
std::shared_ptr<ParameterGroup> parameter_group_of(const at::Tensor& t);

}  // namespace dtensor::internal
