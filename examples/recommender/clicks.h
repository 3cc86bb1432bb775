// Synthetic clicks: whether one happens depends on the features by a rule that a model can learn.
#pragma once

#include <vector>

#include "examples/recommender/dlrm.h"

namespace examples {

struct Clicks {
  torch::Tensor dense;             // [samples, features]
  std::vector<torch::Tensor> ids;  // by table: [samples, ids]
  torch::Tensor labels;            // [samples], 0 or 1
  Clicks narrow(int64_t first, int64_t samples) const;
};

// The same for the same arguments. Ids are skewed: a few are frequent.
Clicks make_clicks(const DlrmConfig& config, int64_t samples, uint64_t seed);

}  // namespace examples
