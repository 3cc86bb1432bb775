// The reduction of tensors of one GPU in one pass: each addend is read once, each output written once.
#pragma once

#include <cstdint>

namespace dtensor::cuda {

enum class ReducedType : uint8_t { kHalf, kBFloat16, kFloat, kDouble, kInt, kLong };
enum class Reduction : uint8_t { kSum, kProduct, kMin, kMax };

constexpr int kMostReduced = 16;  // addends, and outputs

// Contiguous memory of the current device, `numel` numbers each. Outputs share memory with nothing.
struct Reduced {
  const void* addends[kMostReduced] = {};
  void* outputs[kMostReduced] = {};
  int num_addends = 0, num_outputs = 0;
  int64_t numel = 0;
  ReducedType type = ReducedType::kFloat;
  Reduction reduction = Reduction::kSum;
  bool average = false;  // the sum is divided by the number of addends
};

// Writes the reduction of the addends, in their order, to every output; half types are reduced in float32. Work is
// queued on `cuda_stream` (a cudaStream_t). Returns the text of an error, or null.
const char* reduce(const Reduced& reduced, void* cuda_stream);

}  // namespace dtensor::cuda
