// What predict_step() predicts: the time of a step by its terms, and its memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/collective.h"

namespace dtensor {

// All collectives of one kind over the same mesh dims, at one level.
struct PredictedCollectives {
  Collective collective = Collective::kBarrier;
  std::string mesh_dims;       // "tp", "dp,tp"
  bool between_nodes = false;  // some group has ranks on several nodes
  int64_t count = 0;
  int64_t bytes = 0;  // that a rank receives
  double seconds = 0;

  std::string name() const;  // "all_reduce(tp)"
};

struct StepPrediction {
  double product_seconds = 0;                       // matrix products, with the time to start them
  double operator_seconds = 0;                      // other operators, likewise, and views whose time was measured
  std::vector<PredictedCollectives> communication;  // longest first
  double flops = 0;                                 // of matrix products
  int64_t memory_traffic = 0;                       // bytes that operators read and write
  int64_t live_bytes = 0;                           // before the step: parameters, states, gradients that are kept
  int64_t peak_bytes = 0;                           // at most at one time, as World::memory() counts
  int64_t operators = 0;                            // that are no views and whose time was not measured
  double start_seconds = 0;                         // to start those, part of product_seconds and operator_seconds
  double bubble_seconds = 0;                        // that a rank of a pipeline waits for the work of others
  double overlapped_seconds = 0;  // of communication that goes on beside operators, or beside other communication

  double communication_seconds() const;  // with what overlaps
  double seconds() const {
    return product_seconds + operator_seconds + communication_seconds() + bubble_seconds - overlapped_seconds;
  }
  // A line for the whole and one for each term.
  std::string to_string() const;
};

}  // namespace dtensor
