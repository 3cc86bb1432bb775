// The sums of which the gradient of a table's rows consists, for .cu files. They are added without atomics, in an order
// that depends on the ids and shapes alone: the same bits every time.
#pragma once

#include "ops/kernels/cuda/launch.h"
#include "ops/kernels/cuda/sorted_ids.h"

namespace dtensor::cuda {

constexpr int kLongRun = 64;  // ids of one row that a whole block adds up

// blockDim.x chunks of blockDim.y rows. The ids of a row are added up by one thread per chunk; those of a row with many
// ids by all threads of the block, whose sums are then added in a fixed order.
//
// source.add<kElements>(positions, row, first, begin, end, step, chunk, sum) adds chunk `chunk` of what the ids at
// positions[begin], positions[begin + step], ... before positions[end] give `row`, whose first one is positions[first].
template <typename T, int kElements, typename Source>
__global__ void sum_runs(Source source, int64_t chunks, SortedIds ids, int64_t num_rows,
                         internal::Elements<T, kElements>* out) {
  using Sum = typename internal::SumType<T>::Type;
  __shared__ Sum partial[kThreads][kElements];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * blockDim.y, own = first_row + threadIdx.y;
  const int32_t own_begin = own < num_rows ? ids.starts[own] : 0, own_end = own < num_rows ? ids.starts[own + 1] : 0;
  const bool is_long = own_end - own_begin > kLongRun;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.x; first < chunks; first += step) {
    const int64_t chunk = first + threadIdx.x;
    if (own < num_rows && chunk < chunks && !is_long) {
      Sum sum[kElements] = {};
      source.template add<kElements>(ids.positions, own, own_begin, own_begin, own_end, 1, chunk, sum);
      store_sum<T, kElements>(sum, out + own * chunks + chunk);
    }
    if (!__syncthreads_or(is_long)) continue;
    for (int64_t row = first_row; row < first_row + blockDim.y && row < num_rows; ++row) {
      const int32_t begin = ids.starts[row], end = ids.starts[row + 1];
      if (end - begin <= kLongRun) continue;  // in all threads of the block alike
      Sum sum[kElements] = {};
      if (chunk < chunks) {
        source.template add<kElements>(ids.positions, row, begin, static_cast<int64_t>(begin) + threadIdx.y, end,
                                       blockDim.y, chunk, sum);
      }
      for (int e = 0; e < kElements; ++e) partial[threadIdx.y * blockDim.x + threadIdx.x][e] = sum[e];
      __syncthreads();
      if (threadIdx.y == 0 && chunk < chunks) {
        for (unsigned y = 1; y < blockDim.y; ++y) {
          for (int e = 0; e < kElements; ++e) sum[e] += partial[y * blockDim.x + threadIdx.x][e];
        }
        store_sum<T, kElements>(sum, out + row * chunks + chunk);
      }
      __syncthreads();
    }
  }
}

template <typename T, int kElements, typename Source>
void launch_sums(const Source& source, int64_t features, const SortedIds& ids, int64_t num_rows, void* out,
                 cudaStream_t stream) {
  const int64_t chunks = features / kElements;
  const dim3 block = block_of(chunks, 32);
  const dim3 grid(static_cast<unsigned>((num_rows + block.y - 1) / block.y), blocks_for(chunks, block.x, kMaxBlocks));
  sum_runs<T, kElements>
      <<<grid, block, 0, stream>>>(source, chunks, ids, num_rows, static_cast<internal::Elements<T, kElements>*>(out));
}

// `grad`: the memory that `source` reads in chunks of 16 bytes if it can.
template <typename T, typename Source>
void sum_by_row(const Source& source, const void* grad, int64_t features, const SortedIds& ids, int64_t num_rows,
                void* out, cudaStream_t stream) {
  if (num_rows == 0 || features == 0) return;
  if (internal::chunk_bytes(grad, out, features * static_cast<int64_t>(sizeof(T))) == 16) {
    launch_sums<T, 16 / sizeof(T)>(source, features, ids, num_rows, out, stream);
  } else {
    launch_sums<T, 1>(source, features, ids, num_rows, out, stream);
  }
}

}  // namespace dtensor::cuda
