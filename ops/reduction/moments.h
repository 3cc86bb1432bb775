// Combines variances and means of parts into those of the whole without cancellation (Chan, Golub, LeVeque, Updating
// Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/reduction/combine_summaries.h"

namespace dtensor::internal {

struct Moments {
  at::Tensor var, mean;  // var: the mean of the squared deviations
};

// Combines columns along the first dim. `shares`: the fraction of all elements in each column, one column per row or
// one for all rows; a column without elements is ignored.
Moments combined(const Moments& columns, const at::Tensor& shares);

// Moments of a plain tensor of real numbers, with the dims kept at size 1; an infinite element may make the mean nan,
// too. ATen's own way on the CPU divides once per element, which takes several times as long.
Moments moments_of(const at::Tensor& plain, const std::vector<int64_t>& dims);

// Each rank's summary for moments: variance and mean of its elements along `dims`, in `dtype`.
SummaryRequest moments_request(std::vector<int64_t> dims, c10::ScalarType dtype);
// Combines the summaries of that request.
Combination moments_combination(const SummaryRequest& request);

int64_t num_elements(const LocalLayout& part, const std::vector<int64_t>& dims);
// A SummaryRequest::count for one summary per rank with elements along `dims`, none for an empty part.
std::function<int64_t(const LocalLayout&)> one_of_elements(const std::vector<int64_t>& dims);

}  // namespace dtensor::internal
