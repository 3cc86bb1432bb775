// Calls that two kernels compute, and what their results have in common.
#pragma once

#include <functional>
#include <vector>

#include "dtensor/tensor/representation.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::testing {

// A call of an operator on tensors of given sizes.
struct Sample {
  std::vector<std::vector<int64_t>> inputs;  // their sizes
  std::function<at::Tensor(std::vector<at::Tensor>&)> call;
};

// Layouts and all that later calls ask of the tensors, but not their values. REQUIRES: both are distributed.
inline void check_same_metadata(const at::Tensor& a, const at::Tensor& b) {
  CHECK(internal::spec_of(a) == internal::spec_of(b));
  CHECK(a.strides() == b.strides());
  CHECK(a.storage_offset() == b.storage_offset());
  CHECK(a.requires_grad() == b.requires_grad());
  CHECK(a.is_view() == b.is_view());
  CHECK(a.is_inference() == b.is_inference());
  const internal::DTensorMeta &x = internal::meta_without_sync(a), &y = internal::meta_without_sync(b);
  CHECK(x.laid_out_by_engine == y.laid_out_by_engine);
  CHECK(x.storage->shared.load() == y.storage->shared.load());
  REQUIRE(x.locals.size() == y.locals.size());
  for (size_t r = 0; r < x.locals.size(); ++r) CHECK(x.locals[r].strides() == y.locals[r].strides());
}

}  // namespace dtensor::testing
