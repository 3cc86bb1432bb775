#include "comm/reduce_in_order.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "comm/avx2.h"
#include "comm/block_copy.h"
#include "comm/combine.h"
#include "comm/reduce_on_gpu.h"
#include "comm/store_past_caches.h"

namespace dtensor::internal {
namespace {

// On CPU: one pass for all addends and outputs, as memory is what a large reduction waits for, and no operator of ATen,
// as calling them is what a small one waits for.

// Elements that stay in the nearest cache, one addend after the other; a constant, so that compilers use vectors.
constexpr int64_t kChunk = 512;
// Elements for one more thread.
constexpr int64_t kGrain = int64_t{1} << 16;

// Memory of one operand, elements `stride` bytes apart.
struct Elements {
  char* data;
  int64_t stride;
};

template <typename T>
T& at(const Elements& e, int64_t i) {
  return *reinterpret_cast<T*>(e.data + i * e.stride);
}

// Addends that are read in one pass, at most.
constexpr size_t kAtOnce = 4;

// The reduction of n elements of `kCount` addends. `sum` shares no memory with them (`__restrict`): else compilers
// would not vectorize the loop.
template <size_t kCount, typename T, typename Op>
DTENSOR_ALWAYS_INLINE void combine(T* __restrict sum, const T* const* addends, int64_t n, Op op) {
  const T* __restrict a = addends[0], * __restrict b = addends[1];
  const T* __restrict c = addends[kCount > 2 ? 2 : 0], * __restrict d = addends[kCount > 3 ? 3 : 0];
  const auto run = [&](int64_t count) __attribute__((always_inline)) {
    for (int64_t i = 0; i < count; ++i) {
      T value = op(a[i], b[i]);
      if constexpr (kCount > 2) value = op(value, c[i]);
      if constexpr (kCount > 3) value = op(value, d[i]);
      sum[i] = value;
    }
  };
  n == kChunk ? run(kChunk) : run(n);
}

template <typename T, typename Op>
DTENSOR_ALWAYS_INLINE void combine_into(T* __restrict sum, const T* __restrict addend, int64_t n, Op op) {
  if (n == kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) sum[i] = op(sum[i], addend[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] = op(sum[i], addend[i]);
  }
}

using Operands = absl::Span<const Elements>;

template <typename T>
bool is_dense(const Elements& e) {
  return e.stride == sizeof(T);
}

// Writes the reduction of n elements of `addends` to `sum`.
template <typename T, typename Op>
DTENSOR_ALWAYS_INLINE void reduce_chunk(T* sum, Operands addends, int64_t begin, int64_t n) {
  const T* first[kAtOnce];
  size_t count = 0;
  while (count < std::min(kAtOnce, addends.size()) && is_dense<T>(addends[count])) {
    first[count] = &at<T>(addends[count], begin);
    ++count;
  }
  switch (count) {
    case 0:
      for (int64_t i = 0; i < n; ++i) sum[i] = at<T>(addends[0], begin + i);
      count = 1;
      break;
    case 1:
      std::memcpy(sum, first[0], n * sizeof(T));
      break;
    case 2:
      combine<2>(sum, first, n, Op());
      break;
    case 3:
      combine<3>(sum, first, n, Op());
      break;
    default:
      combine<4>(sum, first, n, Op());
  }
  for (const Elements& from : addends.subspan(count)) {
    if (is_dense<T>(from)) {
      combine_into(sum, &at<T>(from, begin), n, Op());
    } else {
      for (int64_t i = 0; i < n; ++i) sum[i] = Op()(sum[i], at<T>(from, begin + i));
    }
  }
}

template <typename T, typename Op>
DTENSOR_ALWAYS_INLINE void reduce_elements(Operands outputs, Operands addends, int64_t numel, bool average,
                                           bool past_caches) {
  alignas(64) T buffer[kChunk];
  // The first output takes the partial sums, too, if it is dense: a copy less.
  const bool is_direct = is_dense<T>(outputs[0]) && !past_caches;
  for (int64_t begin = 0; begin < numel; begin += kChunk) {
    const int64_t n = std::min(kChunk, numel - begin);
    T* const sum = is_direct ? &at<T>(outputs[0], begin) : buffer;
    reduce_chunk<T, Op>(sum, addends, begin, n);
    if (average) {
      for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<T>(addends.size());
    }
    for (const Elements& to : outputs.subspan(is_direct ? 1 : 0)) {
      if (!is_dense<T>(to)) {
        for (int64_t i = 0; i < n; ++i) at<T>(to, begin + i) = sum[i];
      } else if (past_caches) {
        store_past_caches(to.data + begin * to.stride, reinterpret_cast<const char*>(sum), n * to.stride);
      } else {
        std::memcpy(to.data + begin * to.stride, sum, n * sizeof(T));
      }
    }
  }
  if (past_caches) close_stores();
}

using Reduce = void (*)(Operands outputs, Operands addends, int64_t numel, bool average, bool past_caches);

#ifdef DTENSOR_HAVE_AVX2
// The same bits: each element is computed alike, and nothing is fused.
template <typename T, typename Op>
[[gnu::target("avx2")]] void reduce_by_avx2(Operands outputs, Operands addends, int64_t numel, bool average,
                                            bool past_caches) {
  reduce_elements<T, Op>(outputs, addends, numel, average, past_caches);
}
#endif

template <typename T, typename Op>
Reduce reduce_with() {
#ifdef DTENSOR_HAVE_AVX2
  if (has_avx2()) return reduce_by_avx2<T, Op>;
#endif
  return reduce_elements<T, Op>;
}

template <typename T>
Reduce reduce_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce_with<T, Sum>();
    case ReduceOp::kProduct:
      return reduce_with<T, Product>();
    case ReduceOp::kMin:
      return reduce_with<T, Min>();
    case ReduceOp::kMax:
      return reduce_with<T, Max>();
    case ReduceOp::kNorm2:  // plans add up squares
      break;
  }
  return nullptr;
}

// Null for what is left to ATen: half types, as its conversions are faster, and rare ones.
Reduce reduce_of(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return reduce_of<float>(op);
    case at::kDouble:
      return reduce_of<double>(op);
    case at::kInt:
      return reduce_of<int32_t>(op);
    case at::kLong:
      return reduce_of<int64_t>(op);
    default:
      return nullptr;
  }
}

// Whether a reduction of dense operands into one chunk after the other, on this thread, is the fastest.
bool takes_one_thread(int64_t numel) { return numel <= kGrain || at::get_num_threads() == 1; }

bool are_past_caches(size_t outputs, int64_t numel, int64_t item) {
  return numel * item * static_cast<int64_t>(outputs) >= kPastCaches;
}

// Reduces dense operands: writes the first `outputs` of them.
void reduce_dense(Operands all, size_t outputs, int64_t numel, bool average, Reduce reduce) {
  reduce(all.first(outputs), all.subspan(outputs), numel, average, are_past_caches(outputs, numel, all[0].stride));
}

void reduce_on_cpu(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, bool average,
                   Reduce reduce) {
  const int64_t numel = outputs[0].numel();
  const auto item = static_cast<int64_t>(outputs[0].element_size());
  const auto all_of = [&](auto condition) {
    return std::all_of(outputs.begin(), outputs.end(), condition) &&
           std::all_of(addends.begin(), addends.end(), condition);
  };
  if (takes_one_thread(numel) && all_of([](const at::Tensor& t) { return t.is_contiguous(); })) {
    absl::InlinedVector<Elements, 16> operands;
    for (const at::Tensor& t : outputs) operands.push_back({static_cast<char*>(t.mutable_data_ptr()), item});
    for (const at::Tensor& t : addends)
      operands.push_back({static_cast<char*>(const_cast<void*>(t.const_data_ptr())), item});
    return reduce_dense(operands, outputs.size(), numel, average, reduce);
  }
  const bool past_caches = are_past_caches(outputs.size(), numel, item);
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).resize_outputs(false);
  for (const at::Tensor& t : outputs) config.add_output(t);
  for (const at::Tensor& t : addends) config.add_const_input(t);
  at::TensorIterator iterator = config.build();
  const size_t count = outputs.size() + addends.size();
  iterator.for_each(
      [&](char** data, const int64_t* strides, int64_t inner, int64_t outer) {
        std::vector<Elements> of_thread(count);
        for (int64_t row = 0; row < outer; ++row) {
          for (size_t k = 0; k < count; ++k) of_thread[k] = {data[k] + row * strides[count + k], strides[k]};
          const Operands all = of_thread;
          reduce(all.first(outputs.size()), all.subspan(outputs.size()), inner, average,
                 past_caches && inner >= kChunk);
        }
      },
      kGrain);
}

void reduce_next(at::Tensor out, const at::Tensor& addend, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      out.add_(addend);
      break;
    case ReduceOp::kProduct:
      out.mul_(addend);
      break;
    case ReduceOp::kMin:
      at::minimum_out(out, out, addend);
      break;
    case ReduceOp::kMax:
      at::maximum_out(out, out, addend);
      break;
    case ReduceOp::kNorm2:  // plans add up squares
      break;
  }
}

// ATen has no arithmetic for the larger unsigned integers. As signed ones, sums and products have the same bits; with
// the first bit turned over, the order is the same, too.
struct SignedForm {
  at::ScalarType dtype;
  int64_t first_bit;
};
std::optional<SignedForm> signed_form(at::ScalarType dtype) {
  if (dtype == at::kUInt16) return SignedForm{at::kShort, std::numeric_limits<int16_t>::min()};
  if (dtype == at::kUInt32) return SignedForm{at::kInt, std::numeric_limits<int32_t>::min()};
  if (dtype == at::kUInt64) return SignedForm{at::kLong, std::numeric_limits<int64_t>::min()};
  return std::nullopt;
}

bool is_min_or_max(ReduceOp op) { return op == ReduceOp::kMin || op == ReduceOp::kMax; }

// Its allocations are those of reduce_in_order_bytes().
void reduce_by_aten(at::Tensor out, absl::Span<const at::Tensor> addends, ReduceOp op) {
  const auto form = signed_form(out.scalar_type());
  const bool turned_over = form && is_min_or_max(op);
  const auto operand = [&](size_t i) {
    if (!form) return addends[i];
    const at::Tensor as_signed = addends[i].view(form->dtype);
    return turned_over ? as_signed.bitwise_xor(form->first_bit) : as_signed;
  };
  if (form) out = out.view(form->dtype);
  const bool half = c10::isReducedFloatingType(out.scalar_type());
  const auto dtype = half ? at::kFloat : out.scalar_type();
  at::Tensor sum = out;
  if (half) {
    sum = operand(0).to(out.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
  } else {
    out.copy_(operand(0));
  }
  for (size_t i = 1; i < addends.size(); ++i) reduce_next(sum, operand(i).to(out.device(), dtype), op);
  if (op == ReduceOp::kAvg) {
    // A complex divisor, which ATen makes from a number with complex tensors, would carry NaN and infinities of one
    // part over to the other.
    const at::Tensor parts = sum.is_complex() ? at::view_as_real(sum) : sum;
    parts.div_(static_cast<int64_t>(addends.size()));
  }
  if (half) out.copy_(sum);
  if (turned_over) out.bitwise_xor_(form->first_bit);
}

}  // namespace

void reduce_in_order(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, ReduceOp op) {
  if (outputs[0].numel() == 0) return;
  if (const Reduce reduce = reduce_of(outputs[0].scalar_type(), op);
      reduce != nullptr && std::all_of(outputs.begin(), outputs.end(), is_plain_memory) &&
      std::all_of(addends.begin(), addends.end(), is_plain_memory)) {
    return reduce_on_cpu(outputs, addends, op == ReduceOp::kAvg, reduce);
  }
  if (reduce_on_gpu(outputs, addends, op)) return;
  reduce_by_aten(outputs[0], addends, op);
  for (const at::Tensor& output : outputs.subspan(1)) output.copy_(outputs[0]);
}

void reduce_blocks_in_order(const TensorBlock& output, absl::Span<const TensorBlock> addends, const Shape& sizes,
                            ReduceOp op) {
  const int64_t numel = numel_of(sizes);
  if (numel == 0) return;
  const Reduce reduce = takes_one_thread(numel) ? reduce_of(output.tensor->scalar_type(), op) : nullptr;
  if (reduce != nullptr) output.tensor->mutable_data_ptr();  // if it is copied on write, here
  absl::InlinedVector<Elements, 16> operands;
  const auto add = [&, item = static_cast<int64_t>(output.tensor->element_size())](const TensorBlock& block) {
    const char* const data = dense_block(*block.tensor, *block.offsets, sizes);
    if (data != nullptr) operands.push_back({const_cast<char*>(data), item});
    return data != nullptr;
  };
  if (reduce != nullptr && add(output) && std::all_of(addends.begin(), addends.end(), add)) {
    return reduce_dense(operands, 1, numel, op == ReduceOp::kAvg, reduce);
  }
  const auto view = [&](const TensorBlock& block) { return block_view(*block.tensor, *block.offsets, sizes); };
  std::vector<at::Tensor> views;
  for (const TensorBlock& addend : addends) views.push_back(view(addend));
  reduce_in_order({view(output)}, views, op);
}

int64_t reduce_in_order_bytes(at::ScalarType dtype, ReduceOp op) {
  // The sum, and the next addend.
  if (c10::isReducedFloatingType(dtype)) return 2 * static_cast<int64_t>(sizeof(float));
  // The next addend, with its first bit turned over.
  return signed_form(dtype) && is_min_or_max(op) ? static_cast<int64_t>(c10::elementSize(dtype)) : 0;
}

}  // namespace dtensor::internal
