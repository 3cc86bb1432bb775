// Copies of tensors in other layouts, kept after a redistribution that an operator needed: the next operator that needs
// the tensor, or a view of it, in the same layout does not communicate. By the rules of storage_cache.h, which drops
// the copies at a write. In abstract worlds, where no rank has data, the copy has no local tensors and counts all the
// same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

// Called when a view of `t` is taken: `t` is the base of its memory, unless one is set already or `t` is replicated.
void set_base_of_views(const at::Tensor& t);
// The base that `t` is a view of, as a tensor. Undefined: `t` is the base, or there is none.
at::Tensor base_of_view(const at::Tensor& t);

// The local tensors of `t` after `plan`, if they are cached or can be derived from a cached copy of the base. For
// operators that only read them.
std::optional<RankTensors> find_cached_layout(const at::Tensor& t, const RedistributePlan& plan);
// `t` in the layout `to`, if it is cached or can be derived from a cached copy of the base; undefined without such.
// Waits for a copy that is arriving. Only to be read.
at::Tensor find_copy(const at::Tensor& t, const Placements& to);
// Whether there is such a copy, be it arriving.
bool has_copy(const at::Tensor& t, const Placements& to);
// Partial `t`, reduced before and cached; undefined without such. A copy reduced to shards does not count: an operator
// that needs the full tensor would gather it.
at::Tensor find_reduced_copy(const at::Tensor& t);

// Whether `t`, a view of `base` or `base` itself, in the layout `to` is a view of `base` in the layout `base_to`.
bool can_derive(const at::Tensor& t, const Placements& to, const at::Tensor& base, const Placements& base_to);
// Caches `gathered`, a copy of `t` in another layout, which may be arriving, until it is dropped: without the limit for
// other copies, and counted in gathered_of().
void keep_gathered(const at::Tensor& t, const at::Tensor& gathered);

// A redistribution of a tensor or of its base, not yet run.
struct PendingMove {
  MemoryRange of;
  std::shared_ptr<const RedistributePlan> plan;
  uint64_t writes = 0;     // writes_of() the memory when it was planned
  uint64_t recording = 0;  // current_recording() then
};

// How to get `t` after `plan`: by moving `t`, or its base if that takes at most twice as long, since other views then
// need no communication.
PendingMove choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan);
// Will `t` after `plan` be cached, or derivable, once `pending` has run, which was chosen for `of`?
bool will_provide(const PendingMove& pending, const at::Tensor& of, const at::Tensor& t, const RedistributePlan& plan);
// Will a copy of `t` after `plan` be cached?
bool will_be_cached(const at::Tensor& t, const RedistributePlan& plan);
// The local tensors of `t` in the layout `to`, once `pending` has moved its tensor to `moved`. Caches `moved`.
RankTensors finish_move(const at::Tensor& t, const Placements& to, PendingMove pending, RankTensors moved);

}  // namespace dtensor::internal
