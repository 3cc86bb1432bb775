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

template <typename T, typename Op>
void combine(T* __restrict sum, const T* __restrict addend, int64_t n, Op op) {
  if (n == kChunk) {
    for (int64_t i = 0; i < kChunk; ++i) sum[i] = op(sum[i], addend[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] = op(sum[i], addend[i]);
  }
}

using Operands = absl::Span<const Elements>;

template <typename T, typename Op>
void reduce_elements(Operands outputs, Operands addends, int64_t numel, bool average, bool past_caches) {
  alignas(64) T sum[kChunk];
  for (int64_t begin = 0; begin < numel; begin += kChunk) {
    const int64_t n = std::min(kChunk, numel - begin);
    for (size_t a = 0; a < addends.size(); ++a) {
      const Elements& from = addends[a];
      if (from.stride == sizeof(T)) {
        const T* const first = &at<T>(from, begin);
        if (a == 0) {
          std::memcpy(sum, first, n * sizeof(T));
        } else {
          combine(sum, first, n, Op());
        }
      } else {
        for (int64_t i = 0; i < n; ++i) sum[i] = a == 0 ? at<T>(from, begin + i) : Op()(sum[i], at<T>(from, begin + i));
      }
    }
    if (average) {
      for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<T>(addends.size());
    }
    for (const Elements& to : outputs) {
      if (to.stride != sizeof(T)) {
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

template <typename T>
Reduce reduce_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce_elements<T, Sum>;
    case ReduceOp::kProduct:
      return reduce_elements<T, Product>;
    case ReduceOp::kMin:
      return reduce_elements<T, Min>;
    case ReduceOp::kMax:
      return reduce_elements<T, Max>;
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

void reduce_on_cpu(absl::Span<const at::Tensor> outputs, absl::Span<const at::Tensor> addends, bool average,
                   Reduce reduce) {
  const int64_t numel = outputs[0].numel();
  const auto item = static_cast<int64_t>(outputs[0].element_size());
  const bool past_caches = numel * item * static_cast<int64_t>(outputs.size()) >= kPastCaches;
  const auto all_of = [&](auto condition) {
    return std::all_of(outputs.begin(), outputs.end(), condition) &&
           std::all_of(addends.begin(), addends.end(), condition);
  };
  absl::InlinedVector<Elements, 16> operands;
  if ((numel <= kGrain || at::get_num_threads() == 1) &&
      all_of([](const at::Tensor& t) { return t.is_contiguous(); })) {
    for (const at::Tensor& t : outputs) operands.push_back({static_cast<char*>(t.mutable_data_ptr()), item});
    for (const at::Tensor& t : addends)
      operands.push_back({static_cast<char*>(const_cast<void*>(t.const_data_ptr())), item});
    const Operands all = operands;
    return reduce(all.first(outputs.size()), all.subspan(outputs.size()), numel, average, past_caches);
  }
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

int64_t reduce_in_order_bytes(at::ScalarType dtype, ReduceOp op) {
  // The sum, and the next addend.
  if (c10::isReducedFloatingType(dtype)) return 2 * static_cast<int64_t>(sizeof(float));
  // The next addend, with its first bit turned over.
  return signed_form(dtype) && is_min_or_max(op) ? static_cast<int64_t>(c10::elementSize(dtype)) : 0;
}

}  // namespace dtensor::internal
