// What every rank says of its part of some dims, gathered in one exchange: where a reduction of split dims needs more
// than one number a rank, but far less than the elements. Internal to ops/.
//
//   // Each rank's largest element; then the largest of these is the largest of all.
//   const auto maxima = gather_summaries(t, {.dims = {1}, .count = [](const Part& p) { return p.empty() ? 0 : 1; }, ...});
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/comm_event.h"
#include "ops/reduction/rank_shares.h"
#include "placement/geometry.h"

namespace dtensor {

// Whether several ranks share the elements along `dims` (ascending, not empty), and all elements are values: nothing is
// Partial.
bool is_split(const at::Tensor& t, const std::vector<int64_t>& dims);

struct Summaries {
  // Distributed as the tensor is, but all columns of all ranks, one after the other, along the first of the dims.
  std::vector<at::Tensor> tensors;
  std::vector<Part> parts;  // of what each column is
};

// Columns that travel, padding included: ranks that share the dims times the widest summary.
int64_t num_columns(const at::Tensor& t, const SummaryRequest& request);
// Are these columns fewer bytes than the elements that they stand for?
bool are_fewer_bytes(const at::Tensor& t, const SummaryRequest& request);
// REQUIRES: is_split(t, request.dims).
Summaries gather_summaries(const at::Tensor& t, const SummaryRequest& request, const CommCause& cause);

}  // namespace dtensor
