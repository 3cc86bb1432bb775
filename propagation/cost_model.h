// Seconds that a collective or a local copy takes: latency and bandwidth (alpha-beta). Bytes are those of the ring algorithms
// (Gloo's docs/algorithms.md, PyTorch's _collective_utils.py); latency grows with the logarithm of the group, as in NCCL's
// trees, so that one collective over several mesh dims is never slower than one per dim. Absolute values are estimates; what
// counts is the order they give.
#pragma once

#include <cstdint>

#include "mesh/comm_event.h"

namespace dtensor {

struct CostModel {
  double base_latency = 6.6e-6;      // seconds per collective
  double hop_latency = 0.6e-6;       // seconds per doubling of the group; an all-reduce pays it twice
  double bandwidth = 87.7e9;         // bytes per second that one rank receives
  double copy_bandwidth = 1.0e12;    // bytes per second of a local copy or fill

  // `bytes`: received per rank. A group of one costs nothing.
  double collective(Collective kind, int64_t group_size, int64_t bytes) const;
  double copy(int64_t bytes) const { return static_cast<double>(bytes) / copy_bandwidth; }
};

}  // namespace dtensor
