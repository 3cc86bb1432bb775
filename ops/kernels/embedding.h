// Lookups into the rows of an embedding table that one rank holds, and their gradient: what is computed for one id or
// one row. For host and device code.
#pragma once

#include <cstdint>

#include "ops/kernels/chunks.h"
#include "ops/kernels/element_type.h"
#include "ops/kernels/host_device.h"

namespace dtensor::internal {

// Rows [offset, offset + size) of a table of `num_rows` rows: those of one rank.
struct TableRows {
  int64_t offset = 0, size = 0, num_rows = 0;
  int64_t padding_idx = -1;  // the id that gets no gradient; -1: there is none
};

constexpr int64_t kNotOwn = -1;  // instead of a row

// One comparison each, as ids are too random for branches: negative numbers are the largest without a sign.
DTENSOR_HOST_DEVICE bool is_in_table(int64_t id, const TableRows& rows) {
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(rows.num_rows);
}

// The row of an id, counted from `offset`; kNotOwn if another rank has it.
DTENSOR_HOST_DEVICE int64_t own_row(int64_t id, const TableRows& rows) {
  const uint64_t row = static_cast<uint64_t>(id) - static_cast<uint64_t>(rows.offset);
  return row < static_cast<uint64_t>(rows.size) ? static_cast<int64_t>(row) : kNotOwn;
}

// As own_row(); kNotOwn for padding, too.
DTENSOR_HOST_DEVICE int64_t gradient_row(int64_t id, const TableRows& rows) {
  return id == rows.padding_idx ? kNotOwn : own_row(id, rows);
}

// Writes chunks `first`, `first + step`, ... of a looked-up row of `chunks` chunks: those of table row `row`, or zeros
// for kNotOwn. All bits zero is 0 in every dtype.
template <typename C>
DTENSOR_HOST_DEVICE void look_up_row(const C* table, int64_t row, C* out, int64_t chunks, int64_t first, int64_t step) {
  if (row == kNotOwn) {
    for (int64_t c = first; c < chunks; c += step) out[c] = C{};
  } else {
    const C* from = table + row * chunks;
    for (int64_t c = first; c < chunks; c += step) out[c] = from[c];
  }
}

// The first of `count` ascending keys that is not below `key`; `count` if there is none.
DTENSOR_HOST_DEVICE int32_t first_not_below(const int32_t* keys, int32_t count, int32_t key) {
  int32_t begin = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (keys[begin + half] < key) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

// Adds elements of several rows of a gradient: chunk `chunk` (of kElements elements) of the rows positions[begin],
// positions[begin + step], ... before positions[end], in this order.
template <typename T, int kElements>
DTENSOR_HOST_DEVICE void add_rows(const Elements<T, kElements>* grad, int64_t chunks, int64_t chunk,
                                  const int32_t* positions, int64_t begin, int64_t end, int64_t step,
                                  typename SumType<T>::Type (&sum)[kElements]) {
  for (int64_t k = begin; k < end; k += step) {
    const Elements<T, kElements> one = grad[positions[k] * chunks + chunk];
    for (int e = 0; e < kElements; ++e) sum[e] += SumType<T>::widen(one.values[e]);
  }
}

}  // namespace dtensor::internal
