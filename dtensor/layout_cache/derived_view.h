// Views in another layout, derived without communication from their base in another layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

// Is every element of the view one of `base`, of the same dtype and mesh? False if `base` has gaps.
bool is_within(const MemoryRange& base, const Spec& view, int64_t offset);

// The functions below. REQUIRES: is_within().

// Whether `t` in the layout `view_to` is a view of the tensor at `base` in the layout `to`.
bool can_derive_view(const MemoryRange& base, const Placements& to, const at::Tensor& t, const Placements& view_to);
// The layout of `base` from which the view, which begins `offset` elements into the memory, can be derived in the
// layout `view_to`; nullopt without one.
std::optional<Placements> base_layout_for(const MemoryRange& base, const Spec& view, int64_t offset,
                                          const Placements& view_to);
// The local tensors of `t`, a view of the tensor at `base`, in the layout `view_to`, derived from `moved`: the local
// tensors of the base in the layout `to`. Replaces elements of `moved` whose strides do not fit. Below autograd.
// REQUIRES: can_derive_view().
RankTensors derive_view(const MemoryRange& base, const Placements& to, RankTensors& moved, const at::Tensor& t,
                        const Placements& view_to);

}  // namespace dtensor::internal
