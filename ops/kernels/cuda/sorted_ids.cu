#include <cub/device/device_radix_sort.cuh>

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/sorted_ids.h"

namespace dtensor::cuda {
using namespace internal;

namespace {

// The sort key of each id: its own row, or rows.size for ids without a gradient here.
template <typename Id>
__global__ void make_keys(const Id* ids, int32_t count, TableRows rows, int32_t* keys, int32_t* positions) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    check_in_table(ids[i], rows);
    const int64_t row = gradient_row(ids[i], rows);
    keys[i] = static_cast<int32_t>(row == kNotOwn ? rows.size : row);
    positions[i] = static_cast<int32_t>(i);
  }
}

// Where the ids of each row start among the sorted ones, and where those of the last row end.
__global__ void find_starts(const int32_t* keys, int32_t count, int32_t num_rows, int32_t* starts) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row <= num_rows; row += step) {
    starts[row] = first_not_below(keys, count, static_cast<int32_t>(row));
  }
}

// The parts of the scratch memory, each at a multiple of 256 bytes.
struct Scratch {
  int32_t *keys, *sorted_keys, *positions, *sorted_positions, *starts;
  void* sort;
  size_t sort_bytes, bytes;
};

int sort_bits(const TableRows& rows) {
  int bits = 1;
  while (bits < 31 && (rows.size >> bits) != 0) ++bits;
  return bits;
}

cudaError_t lay_out_scratch(int64_t num_ids, const TableRows& rows, void* memory, Scratch& s) {
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char* const begin = static_cast<char*>(memory) + used;
    used += (bytes + 255) / 256 * 256;
    return begin;
  };
  const size_t count = static_cast<size_t>(num_ids);
  for (int32_t** part : {&s.keys, &s.sorted_keys, &s.positions, &s.sorted_positions}) {
    *part = reinterpret_cast<int32_t*>(take(count * sizeof(int32_t)));
  }
  s.starts = reinterpret_cast<int32_t*>(take((static_cast<size_t>(rows.size) + 1) * sizeof(int32_t)));
  s.sort_bytes = 0;
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(nullptr, s.sort_bytes, s.keys, s.sorted_keys, s.positions, s.sorted_positions,
                                      static_cast<int32_t>(count), 0, sort_bits(rows));
  s.sort = take(s.sort_bytes);
  s.bytes = used;
  return error;
}

}  // namespace

const char* sort_scratch(const EmbeddingIds& ids, const TableRows& rows, size_t& bytes) {
  Scratch scratch;
  const cudaError_t error = lay_out_scratch(ids.count, rows, nullptr, scratch);
  bytes = scratch.bytes;
  return error_text(error);
}

const char* sort_ids(const EmbeddingIds& ids, const TableRows& rows, void* scratch, size_t scratch_bytes,
                     SortedIds& sorted, void* cuda_stream) {
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  const auto count = static_cast<int32_t>(ids.count);
  Scratch s;
  cudaError_t error = lay_out_scratch(ids.count, rows, scratch, s);
  if (error != cudaSuccess) return error_text(error);
  if (s.bytes > scratch_bytes) return "sort_ids: the scratch memory is too small";
  sorted = {s.sorted_positions, s.starts};
  if (count > 0) {
    const unsigned blocks = blocks_for(count, kThreads, kMaxBlocks);
    if (ids.are_int32) {
      make_keys<<<blocks, kThreads, 0, stream>>>(static_cast<const int32_t*>(ids.data), count, rows, s.keys,
                                                 s.positions);
    } else {
      make_keys<<<blocks, kThreads, 0, stream>>>(static_cast<const int64_t*>(ids.data), count, rows, s.keys,
                                                 s.positions);
    }
    if (const char* text = launch_error()) return text;
    // Stable: the positions of a row stay in order.
    error = cub::DeviceRadixSort::SortPairs(s.sort, s.sort_bytes, s.keys, s.sorted_keys, s.positions,
                                            s.sorted_positions, count, 0, sort_bits(rows), stream);
    if (error != cudaSuccess) return error_text(error);
  }
  find_starts<<<blocks_for(rows.size + 1, kThreads, kMaxBlocks), kThreads, 0, stream>>>(
      s.sorted_keys, count, static_cast<int32_t>(rows.size), s.starts);
  return launch_error();
}

}  // namespace dtensor::cuda
