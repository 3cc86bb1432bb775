// What a rank remembers of tensors beside their parts: other layouts that operators brought a tensor to, and ghost
// regions around the parts. The next operator that needs the same does not communicate.
//
//   A rank remembers at most 64 MiB, the least recently used goes first, and all goes at the end of backward().
//
// What is remembered of a tensor also goes when the tensor is written to. The memory meter counts it. One limit holds
// for each set of ranks that meshes have, since ranks of other meshes run other operators. Which entry goes follows
// from the operators alone and not from when tensors are freed, so that all ranks of a mesh forget alike.
#pragma once

#include <cstdint>

#include "mesh/world.h"

namespace dtensor {

// The limit per rank, 64 MiB unless it is set. 0: nothing is remembered. All ranks set the same, at the same place of
// the program, as it decides what is communicated. Error (ValueError): a negative number.
void limit_remembered_bytes(const World& world, int64_t bytes);
// The bytes of a rank that are in use of the limit. Of several sets of ranks: of that which uses most.
int64_t remembered_bytes(const World& world);
// Forgets everything now. All ranks call it alike.
void forget_remembered(const World& world);

}  // namespace dtensor
