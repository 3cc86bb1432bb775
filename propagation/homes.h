// Where Partial results are at home: in which shards their elements would be had the inputs stayed where they were.
// Rows that are looked up in a table for a split batch are addends on all ranks of the table, and wanted where the
// batch is. Internal to propagate().
#pragma once

#include <vector>

#include "propagation/strategy_pricer.h"

namespace dtensor {

// Decision::output_homes of a call that is computed as `choice` says. Empty: nothing is known of any.
std::vector<SpecPtr> find_homes(const Problem& problem, const Strategy& choice, const OpRule& rule,
                                const std::vector<SpecPtr>& outputs);

}  // namespace dtensor
