// The layouts in which attention over a sharded sequence is computed, and what each way to compute it costs.
#pragma once

#include "dtensor/context_parallel.h"
#include "ops/network/ring_attention.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Placements of query, key and value, [batch, heads, length, features], as RingCall needs them: sharded by length over
// mesh dim `dim`; over each other one by batch or heads, if one of the three is there and all three can be.
struct ContextLayouts {
  Placements q, k;  // of value as of key
};
ContextLayouts context_layouts(const Spec& q, const Spec& k, const Spec& v, int64_t dim);

// Of a mask of 4 dims beside such tensors.
Placements mask_layout(const Spec& mask, const Placements& q);

// As `q`, but over `dim` the heads are sharded instead of the length.
Placements heads_layout(const Spec& q, int64_t dim);
// Ranks over which that shards the heads.
int64_t ranks_of_heads(const Spec& q, int64_t dim);

// Whether the keys' heads can stay as they are when heads are sharded; else each rank gets those of its query heads.
bool keeps_key_heads(const RingCall& call);

// The method that a scope's option means for a call. Error (ValueError): kAllToAll, with fewer heads than ranks.
ContextParallelMethod method_of(ContextParallelMethod option, const RingCall& call, bool differentiable);

}  // namespace dtensor::internal
