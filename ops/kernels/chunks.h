// Memory that one instruction copies, and elements in such memory. For host and device code.
#pragma once

#include <cstdint>

#include "ops/kernels/host_device.h"

namespace dtensor::internal {

// So many bytes are copied by one instruction.
template <int kBytes>
struct alignas(kBytes) Chunk {
  unsigned char bytes[kBytes];
};

// The largest of 16, 8, 4, 2 and 1 that divides two addresses and the bytes of a row.
DTENSOR_HOST_DEVICE int chunk_bytes(const void* a, const void* b, int64_t row_bytes) {
  const uint64_t all =
      reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) | static_cast<uint64_t>(row_bytes);
  return all % 16 == 0 ? 16 : static_cast<int>(all & -all);
}

template <typename T, int kElements>
struct alignas(kElements * sizeof(T)) Elements {
  T values[kElements];
};

}  // namespace dtensor::internal
