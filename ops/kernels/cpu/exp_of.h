// exp() of numbers up to 0 in plain arithmetic, so that compilers vectorise loops of it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace dtensor::internal {

template <typename A>
struct ExpConstants;

template <>
struct ExpConstants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127, kDegree = 7;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;  // of few bits, and the rest
};

template <>
struct ExpConstants<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kDegree = 13;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
};

// 1 / k! for k up to the degree.
template <typename A>
constexpr auto inverse_factorials() {
  std::array<A, ExpConstants<A>::kDegree + 1> all{};
  double factorial = 1;
  for (int k = 0; k <= ExpConstants<A>::kDegree; factorial *= ++k) all[k] = static_cast<A>(1 / factorial);
  return all;
}

// exp(x) for x <= 0 and nan, with an error of about one unit in the last place: 2^n * exp(r), where |r| <= log(2) / 2
// has a short Taylor series. 0 where the result would be denormal.
template <typename A>
[[gnu::always_inline]] inline A exp_of(A x) {
  using C = ExpConstants<A>;
  using Bits = typename C::Bits;
  constexpr A kLog2E = static_cast<A>(1.44269504088896340736), kLeast = static_cast<A>(2 - C::kBias) / kLog2E;
  // A number this large has no fraction: adding it rounds, and leaves the integer in the lowest bits.
  constexpr A kRound = static_cast<A>(Bits{3} << (C::kMantissa - 1));
  const A rounded = x * kLog2E + kRound;
  const A n = rounded - kRound;
  const A r = (x - n * C::kLn2High) - n * C::kLn2Low;
  constexpr auto kFactors = inverse_factorials<A>();
  A series = kFactors[C::kDegree];
  for (int k = C::kDegree; k-- > 0;) series = series * r + kFactors[k];
  const A power = std::bit_cast<A>((std::bit_cast<Bits>(rounded) + C::kBias) << C::kMantissa);
  return x < kLeast ? A(0) : series * power;
}

}  // namespace dtensor::internal
