// Code shared by embedding tables for single rows and for bags.
#pragma once

#include <cstdint>

#include "placement/geometry.h"
#include "propagation/op_call.h"

namespace dtensor::internal {

// The rows of a table that local rank i holds. REQUIRES: one run, as strategies split rows by Shard alone.
IndexRange own_rows(const Spec& table, int64_t i);

// Whether a backward operator with argument `num_weights` prefers the gradient sharded into the rows that the ranks of
// this mesh dim own. Used so that a row-sharded table gets a row-sharded gradient.
bool wants_own_rows(const OpCall& call, int64_t mesh_dim);

}  // namespace dtensor::internal
