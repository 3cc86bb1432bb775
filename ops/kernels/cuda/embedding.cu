#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cassert>
#include <cub/device/device_radix_sort.cuh>

#include "ops/kernels/cuda/embedding.h"

namespace dtensor {

namespace internal {

template <>
struct GradientSum<__half> {
  using Type = float;
  static DTENSOR_HOST_DEVICE float widen(__half value) { return __half2float(value); }
  static DTENSOR_HOST_DEVICE __half narrow(float sum) { return __float2half(sum); }
};

template <>
struct GradientSum<__nv_bfloat16> {
  using Type = float;
  static DTENSOR_HOST_DEVICE float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  static DTENSOR_HOST_DEVICE __nv_bfloat16 narrow(float sum) { return __float2bfloat16(sum); }
};

}  // namespace internal

namespace cuda {
using namespace internal;

namespace {

constexpr int kThreads = 256;          // of a block
constexpr int64_t kMaxBlocks = 65535;  // in any dim of a grid
constexpr int kLongRun = 64;           // ids of one row that a whole block adds up

__device__ void check_in_table(int64_t id, const TableRows& rows) {
  // Not assert(), which NDEBUG removes.
  if (!is_in_table(id, rows)) __assert_fail("index out of range in self", __FILE__, __LINE__, "check_in_table");
}

// The threads of a block for items of `chunks` chunks: x chunks of y items, where x is a power of two up to `most`.
dim3 block_of(int64_t chunks, unsigned most) {
  unsigned lanes = 1;
  while (lanes < most && lanes < chunks) lanes *= 2;
  return dim3(lanes, kThreads / lanes);
}

unsigned blocks_for(int64_t items, int64_t items_per_block, int64_t most) {
  return static_cast<unsigned>(std::min((items + items_per_block - 1) / items_per_block, most));
}

const char* launch_error() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <int kBytes, typename Id>
__global__ void look_up(const Chunk<kBytes>* table, const Id* ids, int64_t count, int64_t chunks, TableRows rows,
                        Chunk<kBytes>* out) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; i < count; i += step) {
    check_in_table(ids[i], rows);
    look_up_row(table, own_row(ids[i], rows), out + i * chunks, chunks, threadIdx.x, blockDim.x);
  }
}

template <int kBytes, typename Id>
void launch_look_up(const void* table, const EmbeddingIds& ids, const TableRows& rows, int64_t row_bytes, void* out,
                    cudaStream_t stream) {
  const int64_t chunks = row_bytes / kBytes;
  const dim3 block = block_of(chunks, kThreads);
  look_up<kBytes, Id><<<blocks_for(ids.count, block.y, kMaxBlocks), block, 0, stream>>>(
      static_cast<const Chunk<kBytes>*>(table), static_cast<const Id*>(ids.data), ids.count, chunks, rows,
      static_cast<Chunk<kBytes>*>(out));
}

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

template <typename T, int kElements>
__device__ void store(const typename GradientSum<T>::Type (&sum)[kElements], Elements<T, kElements>* out) {
  Elements<T, kElements> result;
  for (int e = 0; e < kElements; ++e) result.values[e] = GradientSum<T>::narrow(sum[e]);
  *out = result;
}

// blockDim.x chunks of blockDim.y rows. The ids of a row are added up by one thread per chunk; those of a row with many
// ids by all threads of the block, whose sums are then added in a fixed order.
template <typename T, int kElements>
__global__ void sum_runs(const Elements<T, kElements>* grad, int64_t chunks, const int32_t* positions,
                         const int32_t* starts, int64_t num_rows, Elements<T, kElements>* out) {
  using Sum = typename GradientSum<T>::Type;
  __shared__ Sum partial[kThreads][kElements];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * blockDim.y, own = first_row + threadIdx.y;
  const int32_t own_begin = own < num_rows ? starts[own] : 0, own_end = own < num_rows ? starts[own + 1] : 0;
  const bool is_long = own_end - own_begin > kLongRun;
  const int64_t step = static_cast<int64_t>(gridDim.y) * blockDim.x;
  for (int64_t first = static_cast<int64_t>(blockIdx.y) * blockDim.x; first < chunks; first += step) {
    const int64_t chunk = first + threadIdx.x;
    if (own < num_rows && chunk < chunks && !is_long) {
      Sum sum[kElements] = {};
      add_rows<T, kElements>(grad, chunks, chunk, positions, own_begin, own_end, 1, sum);
      store<T, kElements>(sum, out + own * chunks + chunk);
    }
    if (!__syncthreads_or(is_long)) continue;
    for (int64_t row = first_row; row < first_row + blockDim.y && row < num_rows; ++row) {
      const int32_t begin = starts[row], end = starts[row + 1];
      if (end - begin <= kLongRun) continue;  // in all threads of the block alike
      Sum sum[kElements] = {};
      if (chunk < chunks) {
        add_rows<T, kElements>(grad, chunks, chunk, positions, static_cast<int64_t>(begin) + threadIdx.y, end,
                               blockDim.y, sum);
      }
      for (int e = 0; e < kElements; ++e) partial[threadIdx.y * blockDim.x + threadIdx.x][e] = sum[e];
      __syncthreads();
      if (threadIdx.y == 0 && chunk < chunks) {
        for (unsigned y = 1; y < blockDim.y; ++y) {
          for (int e = 0; e < kElements; ++e) sum[e] += partial[y * blockDim.x + threadIdx.x][e];
        }
        store<T, kElements>(sum, out + row * chunks + chunk);
      }
      __syncthreads();
    }
  }
}

template <typename T, int kElements>
void launch_sums(const EmbeddingGradient& g, const int32_t* positions, const int32_t* starts, cudaStream_t stream) {
  const int64_t chunks = g.features / kElements;
  const dim3 block = block_of(chunks, 32);
  const dim3 grid(static_cast<unsigned>((g.rows.size + block.y - 1) / block.y),
                  blocks_for(chunks, block.x, kMaxBlocks));
  sum_runs<T, kElements><<<grid, block, 0, stream>>>(static_cast<const Elements<T, kElements>*>(g.grad), chunks,
                                                     positions, starts, g.rows.size,
                                                     static_cast<Elements<T, kElements>*>(g.out));
}

template <typename T>
void launch_sums_of(const EmbeddingGradient& g, const int32_t* positions, const int32_t* starts, cudaStream_t stream) {
  constexpr int kElements = 16 / sizeof(T);
  if (chunk_bytes(g.grad, g.out, g.features * static_cast<int64_t>(sizeof(T))) == 16) {
    launch_sums<T, kElements>(g, positions, starts, stream);
  } else {
    launch_sums<T, 1>(g, positions, starts, stream);
  }
}

// The parts of the scratch memory, each at a multiple of 256 bytes.
struct Scratch {
  int32_t *keys, *sorted_keys, *positions, *sorted_positions, *starts;
  void* sort;
  size_t sort_bytes, bytes;
};

int sort_bits(const EmbeddingGradient& g) {
  int bits = 1;
  while (bits < 31 && (g.rows.size >> bits) != 0) ++bits;
  return bits;
}

cudaError_t lay_out_scratch(const EmbeddingGradient& g, void* memory, Scratch& s) {
  size_t used = 0;
  const auto take = [&](size_t bytes) {
    char* const begin = static_cast<char*>(memory) + used;
    used += (bytes + 255) / 256 * 256;
    return begin;
  };
  const size_t count = static_cast<size_t>(g.ids.count);
  for (int32_t** part : {&s.keys, &s.sorted_keys, &s.positions, &s.sorted_positions}) {
    *part = reinterpret_cast<int32_t*>(take(count * sizeof(int32_t)));
  }
  s.starts = reinterpret_cast<int32_t*>(take((static_cast<size_t>(g.rows.size) + 1) * sizeof(int32_t)));
  s.sort_bytes = 0;
  const cudaError_t error =
      cub::DeviceRadixSort::SortPairs(nullptr, s.sort_bytes, s.keys, s.sorted_keys, s.positions, s.sorted_positions,
                                      static_cast<int32_t>(count), 0, sort_bits(g));
  s.sort = take(s.sort_bytes);
  s.bytes = used;
  return error;
}

}  // namespace

const char* masked_embedding(const void* table, const EmbeddingIds& ids, const TableRows& rows, int64_t row_bytes,
                             void* out, void* cuda_stream) {
  if (ids.count == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  const auto run = [&](auto bytes) {
    constexpr int kBytes = decltype(bytes)::value;
    ids.are_int32 ? launch_look_up<kBytes, int32_t>(table, ids, rows, row_bytes, out, stream)
                  : launch_look_up<kBytes, int64_t>(table, ids, rows, row_bytes, out, stream);
  };
  switch (chunk_bytes(table, out, row_bytes)) {
    case 16:
      run(std::integral_constant<int, 16>{});
      break;
    case 8:
      run(std::integral_constant<int, 8>{});
      break;
    case 4:
      run(std::integral_constant<int, 4>{});
      break;
    case 2:
      run(std::integral_constant<int, 2>{});
      break;
    default:
      run(std::integral_constant<int, 1>{});
  }
  return launch_error();
}

const char* masked_embedding_scratch(const EmbeddingGradient& g, size_t& bytes) {
  Scratch scratch;
  const cudaError_t error = lay_out_scratch(g, nullptr, scratch);
  bytes = scratch.bytes;
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* masked_embedding_backward(const EmbeddingGradient& g, void* scratch, size_t scratch_bytes,
                                      void* cuda_stream) {
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  const auto count = static_cast<int32_t>(g.ids.count);
  Scratch s;
  cudaError_t error = lay_out_scratch(g, scratch, s);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  if (s.bytes > scratch_bytes) return "masked_embedding_backward: the scratch memory is too small";
  if (count > 0) {
    const unsigned blocks = blocks_for(count, kThreads, kMaxBlocks);
    if (g.ids.are_int32) {
      make_keys<<<blocks, kThreads, 0, stream>>>(static_cast<const int32_t*>(g.ids.data), count, g.rows, s.keys,
                                                 s.positions);
    } else {
      make_keys<<<blocks, kThreads, 0, stream>>>(static_cast<const int64_t*>(g.ids.data), count, g.rows, s.keys,
                                                 s.positions);
    }
    if (const char* text = launch_error()) return text;
    // Stable: the positions of a row stay in order.
    error = cub::DeviceRadixSort::SortPairs(s.sort, s.sort_bytes, s.keys, s.sorted_keys, s.positions,
                                            s.sorted_positions, count, 0, sort_bits(g), stream);
    if (error != cudaSuccess) return cudaGetErrorString(error);
  }
  if (g.rows.size == 0 || g.features == 0) return nullptr;
  find_starts<<<blocks_for(g.rows.size + 1, kThreads, kMaxBlocks), kThreads, 0, stream>>>(
      s.sorted_keys, count, static_cast<int32_t>(g.rows.size), s.starts);
  switch (g.type) {
    case GradientType::kHalf:
      launch_sums_of<__half>(g, s.sorted_positions, s.starts, stream);
      break;
    case GradientType::kBFloat16:
      launch_sums_of<__nv_bfloat16>(g, s.sorted_positions, s.starts, stream);
      break;
    case GradientType::kFloat:
      launch_sums_of<float>(g, s.sorted_positions, s.starts, stream);
      break;
    case GradientType::kDouble:
      launch_sums_of<double>(g, s.sorted_positions, s.starts, stream);
      break;
  }
  return launch_error();
}

}  // namespace cuda
}  // namespace dtensor
