// The types of elements that kernels compute with. For host and device code.
#pragma once

#include <cstdint>

#include "ops/kernels/host_device.h"

namespace dtensor::internal {

enum class ElementType : uint8_t { kHalf, kBFloat16, kFloat, kDouble };

// In which type elements of type T are added up; specialised for types that are added up in a wider one.
template <typename T>
struct SumType {
  using Type = T;
  static DTENSOR_HOST_DEVICE Type widen(T value) { return value; }
  static DTENSOR_HOST_DEVICE T narrow(Type sum) { return sum; }
};

}  // namespace dtensor::internal
