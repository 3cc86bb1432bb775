// Counter-based random numbers (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the value at a
// place is a function of the key and the place alone. So ranks draw only the part of a tensor that they hold, replicas
// agree, and the result does not depend on how the tensor is laid out. For host and device code.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/kernels/host_device.h"

namespace dtensor::internal {

struct PhiloxWords {
  uint32_t w[4];
};

// Philox4x32-10: 128 random bits for (key, counter).
DTENSOR_HOST_DEVICE PhiloxWords philox4x32(uint64_t key, uint64_t counter, uint64_t counter_high = 0) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

enum class RandomKind : uint8_t {
  kUniform,      // [a, b)
  kNormal,       // mean a, standard deviation b
  kLogNormal,    // exp of a normal value
  kBernoulli,    // 1 with probability a
  kExponential,  // rate a
  kGeometric,    // trials up to the first success of probability a: 1, 2, ...
  kCauchy,       // median a, scale b
  kInteger,      // see RandomDraw::from, range
};

struct RandomDraw {
  RandomKind kind = RandomKind::kUniform;
  double a = 0, b = 1;
  int64_t from = 0;
  uint64_t range = 0;  // kInteger: from, from + 1, ..., from + range - 1; 0: all 2^64 values
};

// A real number in [0, 1) of 53 random bits.
DTENSOR_HOST_DEVICE double unit_real(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return static_cast<double>(bits) * (1.0 / 9007199254740992.0);
}

DTENSOR_HOST_DEVICE int64_t draw_integer(const RandomDraw& draw, const PhiloxWords& x) {
  const uint64_t bits = static_cast<uint64_t>(x.w[0]) << 32 | x.w[1];
  return static_cast<int64_t>(static_cast<uint64_t>(draw.from) + (draw.range == 0 ? bits : bits % draw.range));
}

DTENSOR_HOST_DEVICE double draw_real(const RandomDraw& draw, const PhiloxWords& x) {
  const double u = unit_real(x.w[0], x.w[1]);
  switch (draw.kind) {
    case RandomKind::kUniform:
      return draw.a + (draw.b - draw.a) * u;
    case RandomKind::kNormal:
    case RandomKind::kLogNormal: {
      // Box and Muller; 1 - u is never 0.
      const double angle = 6.283185307179586 * unit_real(x.w[2], x.w[3]);
      const double z = draw.a + draw.b * sqrt(-2 * log1p(-u)) * cos(angle);
      return draw.kind == RandomKind::kNormal ? z : exp(z);
    }
    case RandomKind::kBernoulli:
      return u < draw.a ? 1 : 0;
    case RandomKind::kExponential:
      return -log1p(-u) / draw.a;
    case RandomKind::kGeometric:
      return draw.a >= 1 ? 1 : ceil(log1p(-u) / log1p(-draw.a) + (u == 0 ? 1 : 0));
    case RandomKind::kCauchy:
      return draw.a + draw.b * tan(3.141592653589793 * (u - 0.5));
    case RandomKind::kInteger:
      return static_cast<double>(draw_integer(draw, x));
  }
  return 0;
}

// Converts a value to an element of type T; specialised for types that static_cast does not support.
template <typename T>
struct RandomCast {
  static DTENSOR_HOST_DEVICE T from(double value) { return static_cast<T>(value); }
  static DTENSOR_HOST_DEVICE T from_integer(int64_t value) { return static_cast<T>(value); }
  static DTENSOR_HOST_DEVICE double to_double(T value) { return static_cast<double>(value); }
};

// The value at the place `counter`, as a T.
template <typename T>
DTENSOR_HOST_DEVICE T draw_value(const RandomDraw& draw, uint64_t key, uint64_t counter, uint64_t stream) {
  const PhiloxWords x = philox4x32(key, counter, stream);
  if (draw.kind == RandomKind::kInteger) return RandomCast<T>::from_integer(draw_integer(draw, x));
  const T value = RandomCast<T>::from(draw_real(draw, x));
  // Rounding to T must not reach the open end of the interval.
  if (draw.kind == RandomKind::kUniform && !(RandomCast<T>::to_double(value) < draw.b))
    return RandomCast<T>::from(draw.a);
  return value;
}

}  // namespace dtensor::internal
