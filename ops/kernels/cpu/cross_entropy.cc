#include "ops/kernels/cpu/cross_entropy.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <type_traits>

#include "comm/avx2.h"
#include "comm/parallel_for.h"
#include "ops/kernels/cpu/exp_of.h"

namespace dtensor::cpu {
using namespace internal;

namespace {

constexpr int64_t kChunk = 1024;  // logits that stay in the nearest cache between two loops over them
constexpr int64_t kLanes = 16;    // sums that are added up independently

template <typename T>
using Computed = at::opmath_type<T>;

// Data of CrossEntropyPart. Either targets or probabilities.
template <typename T>
struct Rows {
  const T* logits;
  const int64_t* targets;
  const T* probabilities;
  const Computed<T>* weights;  // null: all 1
  ClassPart part;
  Smoothing<Computed<T>> smoothing;

  // Whether every class adds to product and total, not the target alone.
  bool is_dense() const { return probabilities != nullptr || part.label_smoothing > 0; }
  bool is_ignored(int64_t row) const { return targets != nullptr && targets[row] == part.ignore_index; }
  Computed<T> weight(int64_t c) const { return weights == nullptr ? Computed<T>(1) : weights[c]; }
  // What the target adds to q at its class: nothing where another rank has it.
  int64_t own_target(int64_t row) const { return targets == nullptr ? kNoClass : own_class(targets[row], part); }
};

template <typename T>
DTENSOR_ALWAYS_INLINE const Computed<T>* widened(const T* from, int64_t n, Computed<T>* buffer) {
  if constexpr (std::is_same_v<T, Computed<T>>) {
    return from;
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<Computed<T>>(from[i]);
    return buffer;
  }
}

// Reads ahead, so that reading the next chunk takes place while this one is computed.
template <typename T>
DTENSOR_ALWAYS_INLINE void prefetch(const T* from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(from + i);
}

template <typename A>
DTENSOR_ALWAYS_INLINE A largest_of(const A* x, int64_t n) {
  A lanes[kLanes];
  std::fill(lanes, lanes + kLanes, -std::numeric_limits<A>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = lanes[j] < x[i + j] ? x[i + j] : lanes[j];
  }
  for (; i < n; ++i) lanes[0] = lanes[0] < x[i] ? x[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

// The sum of value(i) for i < n.
template <typename A, typename F>
DTENSOR_ALWAYS_INLINE A sum_of(int64_t n, const F& value) {
  A lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += value(i + j);
  }
  for (; i < n; ++i) lanes[0] += value(i);
  A sum = 0;
  for (const A lane : lanes) sum += lane;
  return sum;
}

// q of classes [first, first + n), of which the target's is added later.
template <typename T>
DTENSOR_ALWAYS_INLINE void fill_q(const Rows<T>& in, int64_t row, int64_t first, int64_t n, Computed<T>* q) {
  const auto [peak, floor] = in.smoothing;
  if (in.probabilities == nullptr) {
    std::fill(q, q + n, floor);
  } else {
    const T* p = in.probabilities + row * in.part.size + first;
    for (int64_t i = 0; i < n; ++i) q[i] = peak * static_cast<Computed<T>>(p[i]) + floor;
  }
  if (in.weights == nullptr) return;
  const Computed<T>* w = in.weights + first;
  for (int64_t i = 0; i < n; ++i) q[i] *= w[i];
}

// The numbers of a row to out[0], out[stride], ...
template <typename T>
DTENSOR_ALWAYS_INLINE void summarize_row(const Rows<T>& in, int64_t row, int numbers, Computed<T>* out,
                                         int64_t stride) {
  using A = Computed<T>;
  alignas(64) A buffer[kChunk], e[kChunk];
  const T* logits = in.logits + row * in.part.size;
  ExpSum<A> all;
  A product = 0, total = 0;
  for (int64_t first = 0; first < in.part.size; first += kChunk) {
    const int64_t n = std::min(kChunk, in.part.size - first);
    const A* x = widened(logits + first, n, buffer);
    const A largest = largest_of(x, n);
    if (all.max < largest) {
      all.sum *= std::exp(all.max - largest);
      all.max = largest;
    }
    const A base = base_of(all.max);
    prefetch(logits + first + kChunk, std::min(kChunk, in.part.size - first - n));
    for (int64_t i = 0; i < n; ++i) e[i] = exp_of(x[i] - base);
    all.sum += sum_of<A>(n, [&](int64_t i) { return e[i]; });
    if (!in.is_dense()) continue;
    fill_q(in, row, first, n, e);
    product += sum_of<A>(n, [&](int64_t i) { return e[i] * x[i]; });
    total += sum_of<A>(n, [&](int64_t i) { return e[i]; });
  }
  A target_weight = 0;
  if (const int64_t c = in.own_target(row); c != kNoClass) {
    target_weight = in.weight(c);
    product += in.smoothing.peak * target_weight * static_cast<A>(logits[c]);
    total += in.smoothing.peak * target_weight;
  }
  const A results[] = {all.max, all.sum, product, total, target_weight};
  for (int k = 0; k < numbers; ++k) out[k * stride] = results[k];
}

template <typename T>
struct Gradient {
  const Computed<T>*of_sum, *of_product, *max;
  T* out;
};

template <typename T>
DTENSOR_ALWAYS_INLINE void differentiate_row(const Rows<T>& in, int64_t row, const Gradient<T>& g) {
  using A = Computed<T>;
  alignas(64) A buffer[kChunk], q[kChunk];
  const T* logits = in.logits + row * in.part.size;
  T* out = g.out + row * in.part.size;
  const bool ignored = in.is_ignored(row), dense = in.is_dense() && !ignored;
  const A scale = ignored ? A(0) : g.of_sum[row], q_scale = g.of_product[row], base = base_of(g.max[row]);
  const int64_t c = ignored ? kNoClass : in.own_target(row);
  // Before the loop, which may write over the logits.
  A at_target = 0;
  if (c != kNoClass) {
    at_target = q_scale * in.weight(c) * (in.smoothing.peak + in.smoothing.floor);
    if (scale != 0) at_target += scale * exp_of(static_cast<A>(logits[c]) - base);
  }
  for (int64_t first = 0; first < in.part.size; first += kChunk) {
    const int64_t n = std::min(kChunk, in.part.size - first);
    if (dense) fill_q(in, row, first, n, q);
    if (scale == 0) {
      for (int64_t i = 0; i < n; ++i) out[first + i] = static_cast<T>(dense ? q_scale * q[i] : A(0));
      continue;
    }
    const A* x = widened(logits + first, n, buffer);
    if (dense) {
      for (int64_t i = 0; i < n; ++i) out[first + i] = static_cast<T>(scale * exp_of(x[i] - base) + q_scale * q[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[first + i] = static_cast<T>(scale * exp_of(x[i] - base));
    }
  }
  if (c != kNoClass) out[c] = static_cast<T>(at_target);
}

template <typename T>
DTENSOR_ALWAYS_INLINE void summarize_rows(const Rows<T>& in, int64_t begin, int64_t end, int numbers, Computed<T>* out,
                                          int64_t stride) {
  for (int64_t row = begin; row < end; ++row) {
    if (!in.is_ignored(row)) summarize_row(in, row, numbers, out + row, stride);
  }
}
template <typename T>
DTENSOR_ALWAYS_INLINE void differentiate_rows(const Rows<T>& in, int64_t begin, int64_t end, const Gradient<T>& g) {
  for (int64_t row = begin; row < end; ++row) differentiate_row(in, row, g);
}

#ifdef DTENSOR_HAVE_AVX2
template <typename T>
[[gnu::target("avx2,fma")]] void summarize_rows_avx2(const Rows<T>& in, int64_t begin, int64_t end, int numbers,
                                                     Computed<T>* out, int64_t stride) {
  summarize_rows(in, begin, end, numbers, out, stride);
}
template <typename T>
[[gnu::target("avx2,fma")]] void differentiate_rows_avx2(const Rows<T>& in, int64_t begin, int64_t end,
                                                         const Gradient<T>& g) {
  differentiate_rows(in, begin, end, g);
}
#endif

template <typename T>
Rows<T> rows_of(const CrossEntropyPart& in) {
  const bool indices = in.target.scalar_type() == at::kLong;
  return {in.logits.const_data_ptr<T>(),
          indices ? in.target.const_data_ptr<int64_t>() : nullptr,
          indices ? nullptr : in.target.const_data_ptr<T>(),
          in.weight.defined() ? in.weight.const_data_ptr<Computed<T>>() : nullptr,
          in.part,
          smoothing_of<Computed<T>>(in.part)};
}

// Of another rank's class, too.
void check_targets(const CrossEntropyPart& in) {
  if (in.target.scalar_type() != at::kLong) return;
  const int64_t* targets = in.target.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < in.logits.size(0); ++row) {
    TORCH_CHECK_INDEX(targets[row] == in.part.ignore_index || is_class(targets[row], in.part), "Target ", targets[row],
                      " is out of bounds.");
  }
}

int64_t rows_per_task(const ClassPart& part) {
  return std::max<int64_t>(1, 8 * kChunk / std::max<int64_t>(part.size, 1));
}

}  // namespace

at::Tensor cross_entropy_part(const CrossEntropyPart& in) {
  check_targets(in);
  const int64_t count = in.logits.size(0);
  const int numbers =
      summary_numbers(in.weight.defined(), in.target.scalar_type() != at::kLong, in.part.label_smoothing);
  at::Tensor out = at::Tensor();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, in.logits.scalar_type(), "cross_entropy_part", [&] {
    using A = Computed<scalar_t>;
    out = in.logits.new_zeros({numbers, count}, in.logits.options().dtype(c10::CppTypeToScalarType<A>::value));
    const Rows<scalar_t> rows = rows_of<scalar_t>(in);
    A* const results = out.mutable_data_ptr<A>();
    std::fill(results + kSum * count, results + (kSum + 1) * count, A(1));
    parallel_for(0, count, rows_per_task(in.part), [&](int64_t begin, int64_t end) {
#ifdef DTENSOR_HAVE_AVX2
      if (has_avx2()) return summarize_rows_avx2(rows, begin, end, numbers, results, count);
#endif
      summarize_rows(rows, begin, end, numbers, results, count);
    });
  });
  return out;
}

void cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max, const CrossEntropyPart& in,
                                 const at::Tensor& out) {
  check_targets(in);
  const int64_t count = in.logits.size(0);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, in.logits.scalar_type(), "cross_entropy_part_backward", [&] {
        using A = Computed<scalar_t>;
        const Rows<scalar_t> rows = rows_of<scalar_t>(in);
        const A* const grads = grad.const_data_ptr<A>();
        const Gradient<scalar_t> g{grads, grads + count, max.const_data_ptr<A>(), out.mutable_data_ptr<scalar_t>()};
        parallel_for(0, count, rows_per_task(in.part), [&](int64_t begin, int64_t end) {
#ifdef DTENSOR_HAVE_AVX2
          if (has_avx2()) return differentiate_rows_avx2(rows, begin, end, g);
#endif
          differentiate_rows(rows, begin, end, g);
        });
      });
}

}  // namespace dtensor::cpu
