// How reductions combine two numbers, for host and device code alike: in one order and precision everywhere.
#pragma once

#include <type_traits>

#ifdef __CUDACC__
#define DTENSOR_COMBINE __host__ __device__ __forceinline__
#else
#define DTENSOR_COMBINE inline
#endif

namespace dtensor::internal {

struct Sum {
  template <typename T>
  DTENSOR_COMBINE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {  // overflow wraps, as in ATen
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <typename T>
  DTENSOR_COMBINE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    } else {
      return a * b;
    }
  }
};

struct Min {
  template <typename T>
  DTENSOR_COMBINE T operator()(T a, T b) const {
    return a < b || a != a ? a : b;  // NaN wins
  }
};

struct Max {
  template <typename T>
  DTENSOR_COMBINE T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

}  // namespace dtensor::internal

#undef DTENSOR_COMBINE
