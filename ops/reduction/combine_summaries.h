// What every rank says of its part of some dims, combined by the cheaper of two ways: where nobody needs what each rank
// says. Internal to ops/.
//
//   // Each rank's largest element as in rank_summaries.h; of these the largest.
//   const auto largest = combine_summaries(t, request, {.dtypes = {dtype}, .combine = [](const auto& maxima, ...) {
//                                            return std::vector{maxima[0].amax(0)}; }}, cause);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "comm/comm_event.h"
#include "ops/reduction/rank_summaries.h"
#include "plan/spec.h"

namespace dtensor {

// How the summaries of one row, which is what the other dims index, become its results.
struct Combination {
  std::vector<c10::ScalarType> dtypes;  // of the results
  // Of the rows that a rank combines, column c of [columns, rows] being of parts[c]: [rows] each. Called where columns
  // and rows are not empty. `group`, [rows]: which of request.groups a row is of; undefined if there is one.
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& columns, const std::vector<Part>& parts,
                                        const at::Tensor& group)>
      combine;
  bool keepdim = true;  // the dims have size 1 in the results, but the first of them request.groups; else they are gone
};

// The results, distributed as the tensor is but whole along the mesh dims that cut the dims. By the cheaper of two
// ways: every rank gets all summaries and combines them; or each gets those of a part of the rows, and the results
// travel, which is as many bytes on any number of ranks, and needs less memory. REQUIRES: is_split(t, request.dims);
// request.count gives 1 at most; keepdim, or one group.
std::vector<at::Tensor> combine_summaries(const at::Tensor& t, const SummaryRequest& request,
                                          const Combination& combination, const CommCause& cause);
// What the exchanges for it take, by the cost model; infinity where they would exceed the memory limit.
double seconds_to_combine(const Spec& spec, const SummaryRequest& request, const Combination& combination);

}  // namespace dtensor
