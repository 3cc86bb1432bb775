#include <type_traits>

#include "ops/kernels/cuda/embedding.h"
#include "ops/kernels/cuda/sum_by_row.h"

namespace dtensor::cuda {
using namespace internal;

namespace {

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

// The gradient of lookups: a row gets a row of it for each of its ids.
template <typename T>
struct RowSource {
  const T* grad;
  int64_t features;

  template <int kElements>
  __device__ void add(const int32_t* positions, int64_t, int64_t, int64_t begin, int64_t end, int64_t step,
                      int64_t chunk, typename SumType<T>::Type (&sum)[kElements]) const {
    add_rows<T, kElements>(reinterpret_cast<const Elements<T, kElements>*>(grad), features / kElements, chunk,
                           positions, begin, end, step, sum);
  }
};

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

const char* masked_embedding_backward(const EmbeddingGradient& g, void* scratch, size_t scratch_bytes,
                                      void* cuda_stream) {
  SortedIds sorted;
  if (const char* error = sort_ids(g.ids, g.rows, scratch, scratch_bytes, sorted, cuda_stream)) return error;
  with_elements(g.type, [&](auto element) {
    using T = decltype(element);
    const RowSource<T> source{static_cast<const T*>(g.grad), g.features};
    sum_by_row<T>(source, g.grad, g.features, sorted, g.rows.size, g.out, static_cast<cudaStream_t>(cuda_stream));
  });
  return launch_error();
}

}  // namespace dtensor::cuda
