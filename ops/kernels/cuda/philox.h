// Counter-based random numbers on a CUDA device: what ops/kernels/cpu/philox.h computes, into device memory.
#pragma once

#include <cstdint>

#include "ops/kernels/philox.h"

namespace dtensor::cuda {

enum class PhiloxType : uint8_t { kBool, kByte, kChar, kShort, kInt, kLong, kHalf, kBFloat16, kFloat, kDouble };

constexpr int kPhiloxMaxDims = 16;

// A contiguous part of a tensor. offsets: device memory, dim after dim, sizes[d] numbers each: what an index of the dim
// contributes to an element's number in the row-major global tensor.
struct PhiloxPart {
  void* data = nullptr;
  PhiloxType type = PhiloxType::kFloat;
  int64_t numel = 0;
  int ndim = 0;
  int64_t sizes[kPhiloxMaxDims] = {};
  const int64_t* offsets = nullptr;
};

// Fills the part on `cuda_stream` (a cudaStream_t) of the current device. `probabilities`: device memory, one number
// per element for a kBernoulli draw of its own; null: draw.a for all. Returns the launch error's text, or null.
const char* philox_fill(const PhiloxPart& part, const internal::RandomDraw& draw, uint64_t key, uint64_t stream,
                        const double* probabilities, void* cuda_stream);

}  // namespace dtensor::cuda
