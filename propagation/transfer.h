// Between layouts that are not on one mesh: who sends which block to whom.
#pragma once

#include <cstdint>
#include <vector>

#include "propagation/redistribute_planner.h"

namespace dtensor {

struct TransferBlock {
  int64_t sender = 0;  // world ranks
  int64_t receiver = 0;
  int64_t input = 0;   // which of the sender's tensors (Layout::parts)
  int64_t output = 0;  // which of the receiver's
  Block block;
};

// Everything that ranks owned by this process send or receive when a tensor without Partials goes from one layout to another,
// by sender, receiver, input, output. A rank that holds what it needs takes it from itself; of several that hold the same,
// every one sends to some. REQUIRES: no rank's parts of `before` overlap but copies along mesh dims that do not cut.
std::vector<TransferBlock> transfer_blocks(const TensorMeta& meta, const Layout& before, const Layout& after);

// routes() of a plan between two layouts that are not on one mesh.
std::vector<Route> transfer_routes(const RedistributePlan& plan);

}  // namespace dtensor
