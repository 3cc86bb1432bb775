// Work divided among LibTorch's threads for computation, of which at::set_num_threads() sets the number.
//
//   parallel_for(0, rows, /*grain=*/64, [&](int64_t begin, int64_t end) {
//     for (int64_t row = begin; row < end; ++row) compute(row);
//   });
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace dtensor::internal {

// Whether it would start threads: LibTorch has several, and this is not within another parallel_for, of LibTorch too.
bool may_start_threads();

// Calls f for ranges that together are [begin, end), each of at least `grain` elements or the whole, at the same time;
// in a single call unless may_start_threads(). Throws what a call threw; if
// several did, one of these.
//
// at::parallel_for is a template: it starts threads only if the source that calls it is compiled with LibTorch's
// OpenMP, which clang does not offer. This function starts them in any build.
void parallel_for(int64_t begin, int64_t end, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> f);

}  // namespace dtensor::internal
