// Finds the numbers of a LinkCost that explain measured times.
#pragma once

#include <vector>

#include "plan/cost_model.h"

namespace dtensor::tools {

struct LinkSample {
  double hops = 1;  // that the collective pays in this group, as CostModel counts them
  double bytes = 0;
  double seconds = 0;
};

struct LinkFit {
  LinkCost cost;
  double typical_error = 0;  // |fitted / measured - 1|: the median and the largest
  double worst_error = 0;
  size_t worst = 0;  // index of that sample
};

// Least squares of relative errors, in which samples that are far off count little. All three numbers are positive:
// what the samples do not show gets the least value that a cost model takes for one (or, without any bytes, LinkCost's
// own bandwidth). If `hops` is the same in all samples, latency and hop_latency share what they have in common as
// LinkCost's own do.
LinkFit fit_link(const std::vector<LinkSample>& samples);

}  // namespace dtensor::tools
