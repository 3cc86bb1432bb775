// Where results are at home: in which shards their elements would be had the inputs stayed where they were. Rows that
// are looked up for a split batch are addends on all ranks of a table by rows, and in shards of columns if it is by
// columns; they are wanted where the batch is. Internal to propagate().
#pragma once

#include <cstdint>
#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor {

// Decision::output_homes of a call that is computed as `choice` says. Empty: nothing is known of any.
std::vector<SpecPtr> find_homes(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                const std::vector<SpecPtr>& outputs);

// Per input, a bit per mesh dim along which it has strayed: it is in other shards than at home, and there the results
// would be at home, too. (Not what is added up over the dim that is split there.) Empty: none has.
std::vector<uint64_t> find_strayed(const Problem& problem, const OpRule& rule);

}  // namespace dtensor
