// Cross entropy over the classes that one rank holds, on a CUDA device: what ops/kernels/cpu/cross_entropy.h computes.
// All memory is contiguous memory of the current device; work is queued on `cuda_stream` (a cudaStream_t). A target
// outside the classes is a device assertion, as in ATen. Functions return the text of a launch error, or null. The same
// bits every time.
#pragma once

#include <cstdint>

#include "ops/kernels/cross_entropy.h"
#include "ops/kernels/element_type.h"

namespace dtensor::cuda {

// Half types are computed in float. Either targets or probabilities.
struct CrossEntropyPart {
  const void* logits = nullptr;  // [count, part.size]
  internal::ElementType type = internal::ElementType::kFloat;
  const int64_t* targets = nullptr;     // [count]
  const void* probabilities = nullptr;  // as the logits
  const void* weights = nullptr;        // [part.size], of the type that is computed in; null: all 1
  int64_t count = 0;
  internal::ClassPart part;
};

// `out`: [numbers, in.count] of the type that is computed in.
const char* cross_entropy_part(const CrossEntropyPart& in, int numbers, void* out, void* cuda_stream);

// `grad`: [2, in.count], `max`: [in.count] of the type that is computed in; `out`: as the logits, or the
// logits.
const char* cross_entropy_part_backward(const void* grad, const void* max, const CrossEntropyPart& in, void* out,
                                        void* cuda_stream);

}  // namespace dtensor::cuda
