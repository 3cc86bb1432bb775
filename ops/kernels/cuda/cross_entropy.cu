#include <type_traits>

#include "ops/kernels/chunks.h"
#include "ops/kernels/cuda/cross_entropy.h"
#include "ops/kernels/cuda/launch.h"

namespace dtensor::cuda {
using namespace internal;

namespace {

constexpr int kWarp = 32;
constexpr int64_t kMostBlocks = int64_t{1} << 20;  // each takes one row at a time

template <typename T>
struct Rows {
  using A = typename SumType<T>::Type;
  const T* logits;
  const int64_t* targets;
  const T* probabilities;
  const A* weights;
  int64_t count;
  ClassPart part;
  Smoothing<A> smoothing;

  __device__ bool is_ignored(int64_t row) const { return targets != nullptr && targets[row] == part.ignore_index; }
  __device__ int64_t own_target(int64_t row) const {
    return targets == nullptr || is_ignored(row) ? kNoClass : own_class(targets[row], part);
  }
  __device__ void check_target(int64_t row) const {
    const bool holds = targets == nullptr || is_ignored(row) || is_class(targets[row], part);
    check_on_device(holds, "Target is out of bounds.", __FILE__, __LINE__);
  }
  // `target`: own_target() of the row, which is not ignored.
  __device__ A q(int64_t row, int64_t c, int64_t target) const {
    A p = c == target ? A(1) : A(0);
    if (probabilities != nullptr) p = SumType<T>::widen(probabilities[row * part.size + c]);
    return (weights == nullptr ? A(1) : weights[c]) * (smoothing.peak * p + smoothing.floor);
  }
};

// What a thread, and then a block, adds up of a row.
template <typename A>
struct RowSums {
  ExpSum<A> exponentials;
  A product = 0, total = 0;

  __device__ void add(const RowSums& other) {
    exponentials = merged(exponentials, other.exponentials);
    product += other.product;
    total += other.total;
  }
};

template <typename A>
__device__ RowSums<A> of_lane(const RowSums<A>& sums, int distance) {
  RowSums<A> other;
  other.exponentials.max = __shfl_down_sync(0xffffffff, sums.exponentials.max, distance);
  other.exponentials.sum = __shfl_down_sync(0xffffffff, sums.exponentials.sum, distance);
  other.product = __shfl_down_sync(0xffffffff, sums.product, distance);
  other.total = __shfl_down_sync(0xffffffff, sums.total, distance);
  return other;
}

// The sums of all threads, in thread 0. In a fixed order.
template <typename A>
__device__ void add_up_block(RowSums<A>& sums) {
  __shared__ A of_warps[kThreads / kWarp][4];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) sums.add(of_lane(sums, distance));
  const int warp = threadIdx.x / kWarp;
  __syncthreads();  // the last row's sums were read
  if (threadIdx.x % kWarp == 0) {
    of_warps[warp][0] = sums.exponentials.max;
    of_warps[warp][1] = sums.exponentials.sum;
    of_warps[warp][2] = sums.product;
    of_warps[warp][3] = sums.total;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / kWarp; ++w) {
    RowSums<A> other;
    other.exponentials.max = of_warps[w][0];
    other.exponentials.sum = of_warps[w][1];
    other.product = of_warps[w][2];
    other.total = of_warps[w][3];
    sums.add(other);
  }
}

// kDense: every class adds to product and total, not the target alone.
template <typename T, int kElements, bool kDense>
__global__ void summarize_rows(Rows<T> in, int numbers, typename SumType<T>::Type* out) {
  using A = typename SumType<T>::Type;
  const int64_t chunks = in.part.size / kElements;
  for (int64_t row = blockIdx.x; row < in.count; row += gridDim.x) {
    in.check_target(row);
    if (in.is_ignored(row)) {  // in all threads of the block alike
      for (int k = threadIdx.x; k < numbers; k += kThreads) out[k * in.count + row] = k == kSum ? A(1) : A(0);
      continue;
    }
    const T* logits = in.logits + row * in.part.size;
    const int64_t target = in.own_target(row);
    RowSums<A> sums;
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
      const auto loaded = reinterpret_cast<const Elements<T, kElements>*>(logits)[chunk];
      A x[kElements], largest = -std::numeric_limits<A>::infinity();
      for (int e = 0; e < kElements; ++e) {
        x[e] = SumType<T>::widen(loaded.values[e]);
        largest = largest < x[e] ? x[e] : largest;
      }
      ExpSum<A>& all = sums.exponentials;
      if (all.max < largest) {
        all.sum *= std::exp(all.max - largest);
        all.max = largest;
      }
      const A base = base_of(all.max);
      for (int e = 0; e < kElements; ++e) {
        all.sum += std::exp(x[e] - base);
        if (kDense) {
          const A q = in.q(row, chunk * kElements + e, target);
          sums.product += q * x[e];
          sums.total += q;
        }
      }
    }
    add_up_block(sums);
    if (threadIdx.x != 0) continue;
    A target_weight = 0;
    if (target != kNoClass) {
      target_weight = in.weights == nullptr ? A(1) : in.weights[target];
      if (!kDense) {
        sums.product = target_weight * SumType<T>::widen(logits[target]);
        sums.total = target_weight;
      }
    }
    const A results[] = {sums.exponentials.max, sums.exponentials.sum, sums.product, sums.total, target_weight};
    for (int k = 0; k < numbers; ++k) out[k * in.count + row] = results[k];
  }
}

template <typename T, int kElements, bool kDense>
__global__ void differentiate_rows(Rows<T> in, const typename SumType<T>::Type* grad,
                                   const typename SumType<T>::Type* max, T* out) {
  using A = typename SumType<T>::Type;
  const int64_t chunks = in.part.size / kElements;
  for (int64_t row = blockIdx.x; row < in.count; row += gridDim.x) {
    in.check_target(row);
    const bool ignored = in.is_ignored(row);
    const int64_t target = in.own_target(row);
    const A scale = ignored ? A(0) : grad[row], q_scale = grad[in.count + row], base = base_of(max[row]);
    const auto* from = reinterpret_cast<const Elements<T, kElements>*>(in.logits + row * in.part.size);
    auto* to = reinterpret_cast<Elements<T, kElements>*>(out + row * in.part.size);
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += kThreads) {
      Elements<T, kElements> loaded;
      if (scale != A(0)) loaded = from[chunk];
      for (int e = 0; e < kElements; ++e) {
        const int64_t c = chunk * kElements + e;
        A value = scale == A(0) ? A(0) : scale * std::exp(SumType<T>::widen(loaded.values[e]) - base);
        if (!ignored && (kDense || c == target)) value += q_scale * in.q(row, c, target);
        loaded.values[e] = SumType<T>::narrow(value);
      }
      to[chunk] = loaded;
    }
  }
}

template <typename T>
Rows<T> rows_of(const CrossEntropyPart& in) {
  using A = typename SumType<T>::Type;
  return {static_cast<const T*>(in.logits),  in.targets, static_cast<const T*>(in.probabilities),
          static_cast<const A*>(in.weights), in.count,   in.part,
          smoothing_of<A>(in.part)};
}

// Calls launch(type, elements, dense), of which each is in the type of a value.
template <typename F>
void choose(const CrossEntropyPart& in, const void* out, const F& launch) {
  const bool dense = in.probabilities != nullptr || in.part.label_smoothing > 0;
  const auto of_type = [&](auto type) {
    using T = decltype(type);
    constexpr int kElements = 16 / sizeof(T);
    const auto of_width = [&](auto width) {
      dense ? launch(type, width, std::true_type()) : launch(type, width, std::false_type());
    };
    const bool wide = chunk_bytes(in.logits, out, in.part.size * static_cast<int64_t>(sizeof(T))) == 16;
    wide ? of_width(std::integral_constant<int, kElements>()) : of_width(std::integral_constant<int, 1>());
  };
  with_elements(in.type, of_type);
}

}  // namespace

const char* cross_entropy_part(const CrossEntropyPart& in, int numbers, void* out, void* cuda_stream) {
  if (in.count == 0) return nullptr;
  const auto blocks = blocks_for(in.count, 1, kMostBlocks);
  choose(in, in.logits, [&](auto type, auto width, auto dense) {
    using T = decltype(type);
    summarize_rows<T, decltype(width)::value, decltype(dense)::value>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(rows_of<T>(in), numbers,
                                                                          static_cast<typename SumType<T>::Type*>(out));
  });
  return launch_error();
}

const char* cross_entropy_part_backward(const void* grad, const void* max, const CrossEntropyPart& in, void* out,
                                        void* cuda_stream) {
  if (in.count == 0 || in.part.size == 0) return nullptr;
  const auto blocks = blocks_for(in.count, 1, kMostBlocks);
  choose(in, out, [&](auto type, auto width, auto dense) {
    using T = decltype(type);
    using A = typename SumType<T>::Type;
    differentiate_rows<T, decltype(width)::value, decltype(dense)::value>
        <<<blocks, kThreads, 0, static_cast<cudaStream_t>(cuda_stream)>>>(
            rows_of<T>(in), static_cast<const A*>(grad), static_cast<const A*>(max), static_cast<T*>(out));
  });
  return launch_error();
}

}  // namespace dtensor::cuda
