// Preferred layouts of results: the shards that their elements would have if the inputs had stayed where they were.
// Rows looked up for a sharded batch are Partial on all ranks of a table sharded by rows, and sharded by columns of a
// table sharded by columns; they prefer the batch sharding. Internal to propagate().
#pragma once

#include <cstdint>
#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor {

// Decision::preferred_outputs of a call that is computed as `choice` says. Empty: none is known.
std::vector<SpecPtr> find_preferred_layouts(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                            const std::vector<SpecPtr>& outputs);

// Per input, a bit per mesh dim along which the input is displaced: it has other shards than it prefers, and the
// results could have the preferred ones, too (not a sum over the dim that is sharded there). Empty: none is.
std::vector<uint64_t> find_displaced_inputs(const Problem& problem, const OpRule& rule);

}  // namespace dtensor
