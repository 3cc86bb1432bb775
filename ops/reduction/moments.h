// Variances and means of parts, combined into those of the whole without cancellation (Chan, Golub, LeVeque, Updating
// Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979). Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/reduction/combine_summaries.h"

namespace dtensor {

// What half types are added up in.
inline c10::ScalarType widened(c10::ScalarType dtype) { return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype; }

struct Moments {
  at::Tensor var, mean;  // var: the mean of the squared deviations
};

// Of columns, along the first dim. `shares`: of all elements those of each column, with a column of its own for each
// row or one for all; a column without elements counts for nothing.
Moments combined(const Moments& columns, const at::Tensor& shares);

// Of a plain tensor of real numbers, with the dims as 1; an infinite element may make the mean nan, too. On a CPU
// ATen's own way divides once per element, which takes several times as long.
Moments moments_of(const at::Tensor& plain, const std::vector<int64_t>& dims);

// What each rank has to say of its elements along `dims`: their variance and mean, in `dtype`.
SummaryRequest moments_request(std::vector<int64_t> dims, c10::ScalarType dtype);
// These, combined.
Combination moments_combination(const SummaryRequest& request);

int64_t num_elements(const Part& part, const std::vector<int64_t>& dims);
// SummaryRequest::count of ranks that each say one thing of their elements along `dims`: none of a part without any.
std::function<int64_t(const Part&)> one_of_elements(const std::vector<int64_t>& dims);

}  // namespace dtensor
