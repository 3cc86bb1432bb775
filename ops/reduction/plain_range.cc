#include "ops/reduction/plain_range.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/stack.h>

#include <numeric>
#include <vector>

#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/combine_summaries.h"
#include "ops/reduction/moments.h"
#include "ops/reduction/split_rows.h"
#include "ops/support/plain_numbers.h"

namespace dtensor::internal {

at::Tensor plain_range(at::Tensor& self, int64_t coordinate_dims, const c10::OperatorHandle& op) {
  if (is_dtensor(self)) self = reduced(self, op, "self");
  std::vector<int64_t> dims(static_cast<size_t>(self.dim() - coordinate_dims));
  std::iota(dims.begin(), dims.end(), 0);
  std::vector<at::Tensor> range;
  if (dims.empty()) {
    range = {self, self};
  } else if (is_split(self, dims)) {
    SummaryRequest request;
    request.dims = dims;
    request.dtypes = {self.scalar_type(), self.scalar_type()};
    request.count = one_of_elements(dims);
    request.summarize = [dims](const at::Tensor& local, const LocalLayout&, int64_t) {
      return std::vector<at::Tensor>{local.amin(dims, true), local.amax(dims, true)};
    };
    Combination combination;
    combination.dtypes = request.dtypes;
    combination.combine = [](const auto& columns, const auto&, const auto&) {
      return std::vector<at::Tensor>{columns[0].amin(0), columns[1].amax(0)};
    };
    combination.keepdim = false;
    range = combine_summaries(self, request, combination, call_cause(op, "self", self));
  } else {
    range = {self.amin(dims), self.amax(dims)};
  }
  return plain_numbers(at::stack({range[0].reshape({-1}), range[1].reshape({-1})}, 1), op, "self");
}

}  // namespace dtensor::internal
