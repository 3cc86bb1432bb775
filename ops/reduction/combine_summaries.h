// Combines per-rank summaries of some dims in the cheaper of two ways, for callers that only need the combined result.
//
//   // Each rank's largest element as in rank_summaries.h, then the maximum of these.
//   const auto largest = combine_summaries(t, request, {.dtypes = {dtype}, .combine = [](const auto& maxima, ...) {
//                                            return std::vector{maxima[0].amax(0)}; }}, cause);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "comm/comm_event.h"
#include "ops/reduction/rank_summaries.h"
#include "plan/spec.h"

namespace dtensor::internal {

// How the summaries of one row (an index of the other dims) are combined to its results.
struct Combination {
  std::vector<c10::ScalarType> dtypes;  // of the results
  // Gets the rows that a rank combines: column c of [columns, rows] comes from parts[c]. Returns [rows] per result.
  // Called only with at least one column and one row. `group`, [rows]: the group of each row, out of request.groups;
  // undefined if there is one group.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& columns, const std::vector<LocalLayout>& parts,
                                        const at::Tensor& group)>
      combine;
  bool keepdim =
      true;  // reduced dims have size 1 in the results, the first of them size request.groups; else they are removed
};

// The results, distributed like the tensor but replicated along the mesh dims that cut the reduced dims. The cheaper of
// two ways: every rank gathers all summaries and combines them; or each rank combines those of a part of the rows and
// the results are gathered, whose bytes do not grow with the number of ranks and which needs less memory. REQUIRES:
// is_split(t, request.dims); request.count returns at most 1; keepdim, or one group.
std::vector<at::Tensor> combine_summaries(const at::Tensor& t, const SummaryRequest& request,
                                          const Combination& combination, const CommCause& cause);
// Estimated time of its exchanges; infinity where they would exceed the memory limit.
double seconds_to_combine(const Spec& spec, const SummaryRequest& request, const Combination& combination);

}  // namespace dtensor::internal
