// Embedding bags over the rows of a table that one rank holds, and their gradients, on a CUDA device: what
// ops/kernels/cpu/embedding_bag.h computes. All memory is memory of the current device; work is queued on `cuda_stream`
// (a cudaStream_t). Wrong ids and offsets are device assertions. Functions return the text of a launch error, or null.
#pragma once

#include <cstddef>

#include "ops/kernels/embedding_bag.h"

namespace dtensor::cuda {

const char* masked_embedding_bag(const internal::BagLookup& b, void* cuda_stream);

// `scratch`: device memory of the size that sort_scratch() gives for the ids and rows (sorted_ids.h).
const char* masked_embedding_bag_backward(const internal::BagGradient& g, void* scratch, size_t scratch_bytes,
                                          void* cuda_stream);

const char* masked_embedding_bag_weights_backward(const internal::BagWeightsGradient& g, void* cuda_stream);

}  // namespace dtensor::cuda
