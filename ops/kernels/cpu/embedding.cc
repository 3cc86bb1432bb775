#include "ops/kernels/cpu/embedding.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include <limits>
#include <type_traits>

#include "comm/avx2.h"
#include "comm/parallel_for.h"
#include "ops/kernels/cpu/positions_by_row.h"

namespace dtensor::cpu {
using namespace internal;

namespace {

void write(char* to, const char* from, int64_t bytes, bool past_caches) {
  past_caches ? store_past_caches(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
}

// Copies `chunks` chunks of 16 bytes: which ids are own cannot be predicted, so for a short row a branch would cost
// more than a copy of zeros.
void look_up_short(const char* table, int64_t row, char* out, int64_t chunks) {
  const Chunk<16>* from = reinterpret_cast<const Chunk<16>*>(row == kNotOwn ? kZeros : table + row * chunks * 16);
  look_up_row(from, 0, reinterpret_cast<Chunk<16>*>(out), chunks, 0, 1);
}

// Begins to read a row: which one comes next the processor cannot know; the rest of a long row it can.
void prefetch_row(const char* row, int64_t bytes) {
  for (int64_t b = 0; b < std::min<int64_t>(bytes, 512); b += 64) __builtin_prefetch(row + b);
}

template <typename Id>
void look_up(const char* table, const Id* ids, char* out, int64_t count, int64_t row_bytes, const TableRows& rows) {
  const bool is_short = row_bytes <= 64 && chunk_bytes(table, out, row_bytes) == 16;
  const bool past_caches = row_bytes >= 1024 && count * row_bytes >= kPastCaches;
  const int64_t ahead = row_bytes <= 256 ? 8 : 2;
  const auto prefetch = [&](int64_t i, int64_t end) {
    if (i >= end) return;
    const int64_t row = own_row(ids[i], rows);
    prefetch_row(row == kNotOwn ? kZeros : table + row * row_bytes, row_bytes);
  };
  parallel_for(0, count, grain_of(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      TORCH_CHECK_INDEX(is_in_table(ids[i], rows), "index out of range in self");
      prefetch(i + ahead, end);
      const int64_t row = own_row(ids[i], rows);
      char* to = out + i * row_bytes;
      if (is_short) {
        look_up_short(table, row, to, row_bytes / 16);
      } else if (row == kNotOwn) {  // together with such ids that follow, which is faster
        const int64_t first = i;
        while (i + 1 < end && is_in_table(ids[i + 1], rows) && own_row(ids[i + 1], rows) == kNotOwn) ++i;
        prefetch(i + 1, end);
        write_zeros(to, (i + 1 - first) * row_bytes, past_caches);
      } else {
        write(to, table + row * row_bytes, row_bytes, past_caches);
      }
    }
    if (past_caches) close_stores();
  });
}

// The rows of a gradient to add up.
template <typename T>
struct GradientRows {
  const T* data;
  int64_t features;
  const std::vector<int32_t>& order;

  // sum = elements [first, first + size) of rows order[begin] to order[end - 1], of which there are at least two.
  DTENSOR_ALWAYS_INLINE void add_up(int64_t begin, int64_t end, int64_t first, int64_t size,
                                    at::opmath_type<T>* __restrict sum) const {
    using Sum = at::opmath_type<T>;
    const auto row = [&](int64_t k) { return data + order[k] * features + first; };
    const T* __restrict a = row(begin), * __restrict b = row(begin + 1);
    prefetch(begin + 5);
    for (int64_t j = 0; j < size; ++j) sum[j] = static_cast<Sum>(a[j]) + static_cast<Sum>(b[j]);
    for (int64_t k = begin + 2; k < end; ++k) {
      const T* __restrict next = row(k);
      prefetch(k + 4);
      for (int64_t j = 0; j < size; ++j) sum[j] += static_cast<Sum>(next[j]);
    }
  }

  // The beginning of row order[k].
  void prefetch(int64_t k) const {
    if (k >= static_cast<int64_t>(order.size())) return;
    prefetch_row(reinterpret_cast<const char*>(data + order[k] * features), features * sizeof(T));
  }
};

// Elements whose sums stay in the nearest cache.
constexpr int64_t kTile = 1024;

template <typename T>
struct Tile {
  alignas(64) at::opmath_type<T> sum[kTile];
  T narrow[std::is_same_v<at::opmath_type<T>, T> ? 1 : kTile];
};

// The sums of elements [first, first + size) of two rows or more, as T, in the tile; size <= kTile.
template <typename T>
DTENSOR_ALWAYS_INLINE const void* add_up(Tile<T>& tile, const GradientRows<T>& rows, int64_t begin, int64_t end,
                                         int64_t first, int64_t size) {
  rows.add_up(begin, end, first, size, tile.sum);
  if constexpr (std::is_same_v<at::opmath_type<T>, T>) {
    return tile.sum;
  } else {
    for (int64_t j = 0; j < size; ++j) tile.narrow[j] = static_cast<T>(tile.sum[j]);
    return tile.narrow;
  }
}

#ifdef DTENSOR_HAVE_AVX2
template <typename T>
[[gnu::target("avx2")]] const void* add_up_avx2(Tile<T>& tile, const GradientRows<T>& rows, int64_t begin, int64_t end,
                                                int64_t first, int64_t size) {
  return add_up(tile, rows, begin, end, first, size);
}
#endif

template <typename T>
auto* best_add_up() {
#ifdef DTENSOR_HAVE_AVX2
  if (has_avx2()) return add_up_avx2<T>;
#endif
  return add_up<T>;
}

template <typename T>
void sum_by_row(const T* grad, const PositionsByRow& by_row, int64_t features, int64_t num_own_rows, T* out) {
  const auto add_up_tile = best_add_up<T>();
  const std::vector<int32_t>& starts = by_row.starts;
  const GradientRows<T> rows{grad, features, by_row.order};
  const bool past_caches = num_own_rows * features * static_cast<int64_t>(sizeof(T)) >= kPastCaches;
  by_row.for_rows(num_own_rows, features * sizeof(T), [&](int64_t begin, int64_t end) {
    Tile<T> tile;
    for (int64_t row = begin; row < end; ++row) {
      char* to = reinterpret_cast<char*>(out + row * features);
      if (starts[row] == starts[row + 1]) {  // together with such rows that follow, which is faster
        const int64_t first = row;
        while (row + 1 < end && starts[row + 1] == starts[row + 2]) ++row;
        write_zeros(to, (row + 1 - first) * features * sizeof(T), past_caches);
        continue;
      }
      rows.prefetch(starts[row] + 4);
      if (starts[row] + 1 == starts[row + 1]) {
        const T* only = grad + by_row.order[starts[row]] * features;
        write(to, reinterpret_cast<const char*>(only), features * sizeof(T), past_caches);
        continue;
      }
      for (int64_t first = 0; first < features; first += kTile) {
        const int64_t size = std::min(kTile, features - first);
        const void* sums = add_up_tile(tile, rows, starts[row], starts[row + 1], first, size);
        write(to + first * sizeof(T), static_cast<const char*>(sums), size * sizeof(T), past_caches);
      }
    }
    if (past_caches) close_stores();
  });
}

}  // namespace

at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  const at::Tensor table = part.contiguous(), flat_ids = ids.contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(part.size(1));
  at::Tensor out = part.new_empty(sizes);
  const int64_t row_bytes = part.size(1) * static_cast<int64_t>(part.element_size());
  AT_DISPATCH_INDEX_TYPES(ids.scalar_type(), "masked_embedding", [&] {
    look_up(static_cast<const char*>(table.const_data_ptr()), flat_ids.const_data_ptr<index_t>(),
            static_cast<char*>(out.mutable_data_ptr()), ids.numel(), row_bytes, {offset, part.size(0), num_rows});
  });
  return out;
}

at::Tensor masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                     int64_t num_own_rows, int64_t num_rows, int64_t padding_idx) {
  TORCH_CHECK(ids.numel() <= std::numeric_limits<int32_t>::max(), "masked_embedding_backward: ", ids.numel(),
              " ids are more than 2^31 - 1");
  const at::Tensor rows = grad.contiguous(), flat_ids = ids.contiguous();
  const int64_t features = grad.size(-1);
  at::Tensor out = grad.new_empty({num_own_rows, features});
  PositionsByRow by_row;
  AT_DISPATCH_INDEX_TYPES(ids.scalar_type(), "masked_embedding_backward", [&] {
    by_row = positions_by_row(flat_ids.const_data_ptr<index_t>(), ids.numel(),
                              {offset, num_own_rows, num_rows, padding_idx});
  });
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, grad.scalar_type(), "masked_embedding_backward", [&] {
    sum_by_row(rows.const_data_ptr<scalar_t>(), by_row, features, num_own_rows, out.mutable_data_ptr<scalar_t>());
  });
  return out;
}

}  // namespace dtensor::cpu
