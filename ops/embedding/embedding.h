// Code shared by the gradients of embedding tables, for single rows and for bags.
#pragma once

#include <cstdint>

#include "propagation/op_call.h"

namespace dtensor::internal {

// Whether a backward operator with argument `num_weights` prefers the gradient sharded into the rows that the ranks of
// this mesh dim own. Used so that a row-sharded table gets a row-sharded gradient.
bool wants_own_rows(const OpCall& call, int64_t mesh_dim);

}  // namespace dtensor::internal
