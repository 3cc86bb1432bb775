// Cross entropy over the classes that one rank holds: what is computed for one row or one class. For host and device
// code.
//
// A row has logits x_c and a target distribution q_c: of a class index 1 at that class, of probabilities these, both
// smoothed and weighted. With max = largest x_c, sum = sum of exp(x_c - max), total = sum of q_c and product = sum of
// q_c * x_c,
//
//   loss = sum of q_c * (log(sum) + max - x_c) = total * log(sum) + (total * max - product)
//   its gradient by x_c = total / sum * exp(x_c - max) - q_c
//
// Each rank computes the four for its own classes. Of all classes, total and product are sums over ranks, and so is the
// sum once it is relative to the largest max. As max and sum stay apart, small losses of large logits are exact.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/kernels/host_device.h"

namespace dtensor::internal {

// Classes [offset, offset + size) of `num_classes`: those of one rank.
struct ClassPart {
  int64_t offset = 0, size = 0, num_classes = 0;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

constexpr int64_t kNoClass = -1;  // instead of a class

// One comparison each: negative numbers are the largest without a sign.
DTENSOR_HOST_DEVICE bool is_class(int64_t target, const ClassPart& part) {
  return static_cast<uint64_t>(target) < static_cast<uint64_t>(part.num_classes);
}

// The class of a target, counted from `offset`; kNoClass if another rank has it.
DTENSOR_HOST_DEVICE int64_t own_class(int64_t target, const ClassPart& part) {
  const uint64_t c = static_cast<uint64_t>(target) - static_cast<uint64_t>(part.offset);
  return c < static_cast<uint64_t>(part.size) ? static_cast<int64_t>(c) : kNoClass;
}

// How a rank makes q_c out of weight w_c (1 without weights): w_c * (peak * p_c + floor), where p_c is a probability,
// or 1 at the target's class and 0 elsewhere.
template <typename A>
struct Smoothing {
  A peak, floor;
};

template <typename A>
DTENSOR_HOST_DEVICE Smoothing<A> smoothing_of(const ClassPart& part) {
  return {static_cast<A>(1 - part.label_smoothing),
          static_cast<A>(part.label_smoothing / static_cast<double>(part.num_classes))};
}

// The sum of exp(x) of some logits, relative to the largest: sum of exp(x - max). No logits: a sum of 0.
template <typename A>
struct ExpSum {
  A max = -std::numeric_limits<A>::infinity(), sum = 0;
};

// What to subtract from logits of which `max` is the largest: 0 where all are -inf, whose exp() is 0, not nan.
template <typename A>
DTENSOR_HOST_DEVICE A base_of(A max) {
  return max == -std::numeric_limits<A>::infinity() ? A(0) : max;
}

// Logits of both. nan in either stays.
template <typename A>
DTENSOR_HOST_DEVICE ExpSum<A> merged(const ExpSum<A>& a, const ExpSum<A>& b) {
  const A max = a.max < b.max ? b.max : a.max, base = base_of(max);
  return {max, a.sum * std::exp(a.max - base) + b.sum * std::exp(b.max - base)};
}

// What ranks exchange about each row, one number after the other in a tensor [numbers, rows]. `total` is there if
// targets are weighted or probabilities (else it is 1, or 0 for ignored rows); `target_weight`, of the target's class,
// if it differs from the total.
enum SummaryNumber : int { kMax = 0, kSum = 1, kProduct = 2, kTotal = 3, kTargetWeight = 4 };

DTENSOR_HOST_DEVICE int summary_numbers(bool weighted, bool probabilities, double label_smoothing) {
  if (!weighted && !probabilities) return 3;
  return weighted && !probabilities && label_smoothing > 0 ? 5 : 4;
}

}  // namespace dtensor::internal
