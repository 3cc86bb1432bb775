// What the gradients of tables, looked up row by row or by bags, share. Internal to ops/.
#pragma once

#include <cstdint>

#include "propagation/op_call.h"

namespace dtensor {

// Does a backward operator, which says `num_weights`, want the gradient in the rows that the ranks of this mesh dim
// own? Then a row-sharded table is to have it.
bool wants_own_rows(const OpCall& call, int64_t mesh_dim);

}  // namespace dtensor
