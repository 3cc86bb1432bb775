// Copies to memory that is not read again soon, for results larger than the caches.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dtensor::internal {

// Bytes of results that no cache would keep until they are used.
constexpr int64_t kPastCaches = int64_t{32} << 20;

// As memcpy, without reading what is written over into the caches first. `to` has the alignment of an element.
inline void store_past_caches(char* to, const char* from, int64_t bytes) {
#if defined(__SSE2__)
  const auto misaligned = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(to) & 15);
  if (misaligned != 0) {
    const int64_t head = std::min(bytes, misaligned);
    std::memcpy(to, from, head);
    to += head, from += head, bytes -= head;
  }
  for (; bytes >= 16; to += 16, from += 16, bytes -= 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
#endif
  std::memcpy(to, from, bytes);
}

// Orders the stores above before messages to other threads.
inline void close_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace dtensor::internal
