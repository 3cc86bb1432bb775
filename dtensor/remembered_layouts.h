// The per-rank cache of tensors in other layouts, and of ghost regions around local tensors, made when operators
// redistributed them. The next operator that needs the same does not communicate.
//
// The cache of a rank holds at most 64 MiB, evicts the least recently used entry first, and is cleared at the end of
// backward().
//
// Writing to a tensor drops its entries. The memory meter counts them. One limit applies to each set of ranks that
// meshes have, since ranks of other meshes run other operators. Eviction follows from the operators alone and not from
// when tensors are freed, so that all ranks of a mesh evict alike.
//
// Gathered parameters of fully_shard() (fully_shard.h) are no part of this: they have no limit, are not in
// remembered_bytes(), and are kept by forget_remembered(). reshard() frees them.
#pragma once

#include <cstdint>

#include "mesh/world.h"

namespace dtensor {

// The limit per rank, 64 MiB by default. 0: no caching. An entry counts at least 512 bytes. All ranks set the same, at
// the same place of the program, as it decides what is communicated. Error (ValueError): a negative number.
void limit_remembered_bytes(const World& world, int64_t bytes);
// The bytes in use on a rank. With several sets of ranks: of the one that uses most.
int64_t remembered_bytes(const World& world);
// Clears the cache now. All ranks call it alike.
void forget_remembered(const World& world);

}  // namespace dtensor
