// Which ranks share some dims of a tensor, and each rank's summary of its part: for rank_summaries.h and
// combine_summaries.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor::internal {

struct SummaryRequest {
  std::vector<int64_t> dims;  // ascending
  // The number of summary columns of the rank that holds `part`; 0 for an empty part.
  std::function<int64_t(const LocalLayout& part)> count;
  // The summaries of one rank's local tensor, in `width` columns: the reduced dims have size 1, the first of them
  // `width`. Columns beyond count() are ignored.
  std::function<std::vector<at::Tensor>(const at::Tensor& local, const LocalLayout& part, int64_t width)> summarize;
  std::vector<c10::ScalarType> dtypes;  // of its results
  // For combine_summaries(): each part has one summary per group of its elements, one after the other along the first
  // of the dims. Groups are combined separately, like rows. `width` then counts all groups together.
  int64_t groups = 1;
};

// Whether a mesh dim with placement `p` cuts one of the dims, which ascend.
bool cuts(const Placement& p, const std::vector<int64_t>& dims);

// The parts along the dims, one per coordinate of the mesh dims that cut them, row-major.
struct Shares {
  std::vector<LocalLayout> parts;
  std::vector<int64_t> counts;  // columns of each
  int64_t width = 0;            // of the part with most

  int64_t position(const Spec& spec, const std::vector<int64_t>& dims, c10::ArrayRef<int64_t> coordinate) const;
};

Shares shares_of(const Spec& spec, const SummaryRequest& request);
// The summary of the i-th local rank.
std::vector<at::Tensor> rank_summaries(const DTensorMeta& meta, size_t i, const Shares& shares,
                                       const SummaryRequest& request);

}  // namespace dtensor::internal
