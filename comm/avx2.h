// For loops that are compiled twice: for any processor, and for AVX2, whose vectors have twice the size. Functions with
// such loops are DTENSOR_ALWAYS_INLINE, so that they are part of either.
//
//   template <typename T> DTENSOR_ALWAYS_INLINE void add(...) { for (...) ... }
//   #ifdef DTENSOR_HAVE_AVX2
//   template <typename T> [[gnu::target("avx2")]] void add_avx2(...) { add<T>(...); }   // called if has_avx2()
//   #endif
#pragma once

#define DTENSOR_ALWAYS_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__)
#define DTENSOR_HAVE_AVX2 1

#include <ATen/Version.h>

namespace dtensor::internal {

// Whether this processor has AVX2 and FMA, and ATEN_CPU_CAPABILITY, LibTorch's environment variable, does not forbid
// it.
inline bool has_avx2() {
  static const bool has = at::get_cpu_capability().substr(0, 3) == "AVX";
  return has;
}

}  // namespace dtensor::internal
#endif
