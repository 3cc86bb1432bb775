// Sends pieces from every rank to every rank, with gradients on the reverse way: one all_to_all per direction.
#pragma once

#include <string>
#include <vector>

#include "comm/rank_tensors.h"
#include "mesh/device_mesh.h"

namespace dtensor::sharded {

// How many elements go from the rank at a position of `ranks` to that at another: counts[sender][receiver]. The same on
// all ranks, so that receivers know their sizes.
struct PieceCounts {
  DeviceMesh ranks;  // of one dim
  std::vector<std::vector<int64_t>> counts;
};

// inputs[i][p] goes from the i-th of ranks.local_ranks() to position p; the result's [i][p] came from there. 1-D, of
// one dtype. `op`: the caller, for reports. Differentiable; a gradient that is missing counts as zeros.
dtensor::internal::RankPieces exchange_pieces(const dtensor::internal::RankPieces& inputs, const PieceCounts& how,
                                              const std::string& op);

// One tensor of every rank to every rank, sizes[position] elements each; not differentiable.
dtensor::internal::RankPieces gather_pieces(const dtensor::internal::RankTensors& inputs, const DeviceMesh& ranks,
                                            const std::vector<int64_t>& sizes, const std::string& op);

}  // namespace dtensor::sharded
