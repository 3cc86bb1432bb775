// The gradient of a table's rows on the CPU: which ids each row gets it from, and the rows divided among threads.
#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "comm/parallel_for.h"
#include "comm/store_past_caches.h"
#include "ops/kernels/embedding.h"

namespace dtensor::cpu {

// Rows per task, for tasks of 128 KiB: smaller ones take less time than to start a thread.
inline int64_t grain_of(int64_t row_bytes) {
  return std::max<int64_t>(1, (int64_t{1} << 17) / std::max<int64_t>(row_bytes, 1));
}

alignas(64) inline constexpr char kZeros[1024] = {};

inline void write_zeros(char* to, int64_t bytes, bool past_caches) {
  // From 4 KiB on memset() of glibc 2.36 took less time than stores past the caches.
  if (!past_caches || bytes >= 4096) return static_cast<void>(std::memset(to, 0, bytes));
  for (int64_t b = 0; b < bytes; b += sizeof kZeros) {
    internal::store_past_caches(to + b, kZeros, std::min<int64_t>(bytes - b, sizeof kZeros));
  }
}

// Where the ids of each own row are, in ascending order: at order[starts[row]] to order[starts[row + 1] - 1].
struct PositionsByRow {
  std::vector<int32_t> starts, order;

  // f(begin, end) for ranges of the `num_rows` rows, each a task. The work for a row: the row to write, and a row to
  // read for each of its ids.
  template <typename F>
  void for_rows(int64_t num_rows, int64_t row_bytes, const F& f) const {
    const auto work_before = [&](int64_t row) { return starts[row] + row; };
    const auto row_at = [&](int64_t work) {
      int64_t begin = 0, end = num_rows;
      while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        work_before(middle) < work ? begin = middle + 1 : end = middle;
      }
      return begin;
    };
    internal::parallel_for(0, work_before(num_rows), grain_of(row_bytes),
                           [&](int64_t begin, int64_t end) { f(row_at(begin), row_at(end)); });
  }
};

// Ids without a gradient here are left out. Error (IndexError): an id outside the table.
template <typename Id>
PositionsByRow positions_by_row(const Id* ids, int64_t count, const internal::TableRows& rows) {
  // Own ids first, without a branch for each: which ids are own cannot be predicted.
  const std::unique_ptr<int32_t[]> positions(new int32_t[count + 1]);
  const std::unique_ptr<int64_t[]> own(new int64_t[count + 1]);
  int64_t size = 0;
  bool wrong = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = internal::gradient_row(ids[i], rows);
    wrong |= !internal::is_in_table(ids[i], rows);
    positions[size] = static_cast<int32_t>(i);
    own[size] = row;
    size += row != internal::kNotOwn;
  }
  TORCH_CHECK_INDEX(!wrong, "index out of range in self");
  // A counting sort. While ids are counted, and then placed, the entry of a row is two places, and then one, behind.
  PositionsByRow result;
  result.starts.assign(rows.size + 2, 0);
  for (int64_t k = 0; k < size; ++k) ++result.starts[own[k] + 2];
  for (int64_t row = 0; row < rows.size; ++row) result.starts[row + 2] += result.starts[row + 1];
  result.order.resize(size);
  for (int64_t k = 0; k < size; ++k) result.order[result.starts[own[k] + 1]++] = positions[k];
  return result;
}

}  // namespace dtensor::cpu
