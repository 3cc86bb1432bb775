// Preferred layouts of results: the shards in which their elements would be if the inputs had not moved. Rows looked up
// for a split batch are Partial with a table sharded by rows, and sharded by columns with a table sharded by columns;
// their preferred layout is the split of the batch. Internal to propagate().
#pragma once

#include <cstdint>
#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor {

// Decision::output_homes of a call computed by `choice`. Empty: no preferred layout is known.
std::vector<SpecPtr> find_homes(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                const std::vector<SpecPtr>& outputs);

// Per input, a bit per mesh dim along which it is displaced: it is sharded otherwise than in its preferred layout, and
// that would determine the preferred layout of the results. (Not for inputs that are summed over the dim that is split
// there.) Empty: none is.
std::vector<uint64_t> find_strayed(const Problem& problem, const OpRule& rule);

}  // namespace dtensor
