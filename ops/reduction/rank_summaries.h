// Gathers a summary of every rank's part of some dims in one exchange: for reductions of split dims that need more than
// one number per rank, but far less than the elements.
//
//   // Each rank's largest element; then the largest of these is the largest of all.
//   const auto maxima = gather_summaries(t, {.dims = {1}, .count = [](const LocalLayout& p) {
//     return p.empty() ? 0 : 1; }, ...});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/comm_event.h"
#include "ops/reduction/rank_shares.h"
#include "placement/geometry.h"

namespace dtensor::internal {

// Whether several ranks share the elements along `dims` (ascending, not empty), and nothing is Partial.
bool is_split(const at::Tensor& t, const std::vector<int64_t>& dims);

struct Summaries {
  // Distributed like the tensor, with the columns of all ranks concatenated along the first of the dims.
  std::vector<at::Tensor> tensors;
  std::vector<LocalLayout> parts;  // the part that each column summarizes
};

// Columns that are sent, padding included: ranks that share the dims times the widest summary.
int64_t num_columns(const at::Tensor& t, const SummaryRequest& request);
// Whether these columns have fewer bytes than the elements that they summarize.
bool are_fewer_bytes(const at::Tensor& t, const SummaryRequest& request);
// REQUIRES: is_split(t, request.dims).
Summaries gather_summaries(const at::Tensor& t, const SummaryRequest& request, const CommCause& cause);

}  // namespace dtensor::internal
