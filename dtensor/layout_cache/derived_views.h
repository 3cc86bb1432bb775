// A view of a base, derived from the base in another layout without communication. Pure but for derive_view().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

// How every rank gets its part of the view from the base in its new layout.
enum class Derivation {
  kNone,          // it can't
  kFromLocal,     // the base was only reduced: the same view of each local tensor
  kFromFull,      // the base is replicated: the view of the full tensor
  kSameSharding,  // the dims that are sharded before and after are whole in the view: the view of each local tensor
};

// Of the view of `spec` that begins `offset` elements into the memory, in the layout `view_to`, from the base at `base`
// in the layout `to`. REQUIRES: is_within(base, spec, offset).
Derivation derivation(const MemoryRange& base, const Placements& to, const Spec& view, int64_t offset,
                      const Placements& view_to);

// Is every element of the view one of `base`, of the same dtype and mesh? False if `base` has gaps.
bool is_within(const MemoryRange& base, const Spec& view, int64_t offset);

// The layout of `base` from which the view can be derived in the layout `view_to`; nullopt without one.
std::optional<Placements> base_layout_for(const MemoryRange& base, const Spec& view, int64_t offset,
                                          const Placements& view_to);

// The local tensors of `t`, a view of the tensor at `base`, in the layout `view_to`, derived from `moved`: the local
// tensors of the base in the layout `to`. Replaces elements of `moved` whose strides do not fit. Below autograd.
// REQUIRES: derivation() is not kNone.
RankTensors derive_view(const MemoryRange& base, const Placements& to, RankTensors& moved, const at::Tensor& t,
                        const Placements& view_to);

// Is `to` the layout `from`, reduced and nothing else?
bool only_reduces(const Placements& from, const Placements& to);

}  // namespace dtensor::internal
