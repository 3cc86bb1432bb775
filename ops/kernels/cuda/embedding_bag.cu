#include <limits>

#include "ops/kernels/cuda/embedding_bag.h"
#include "ops/kernels/cuda/sum_by_row.h"

namespace dtensor::cuda {
using namespace internal;

namespace {

// f(T(), Id()) for the types of elements and integers.
template <typename F>
void with_types(ElementType type, bool are_int32, const F& f) {
  with_elements(type, [&](auto element) { are_int32 ? f(element, int32_t()) : f(element, int64_t()); });
}

// The threads of a bag name it at each of its ids, and one of them writes its size.
template <typename Id>
__device__ void describe_bag(const BagOffsets<Id>& bags, int64_t bag, const Id* ids, const TableRows& rows,
                             Id* bag_of_id, Id* bag_size) {
  for (int64_t p = bags.begin(bag) + threadIdx.x; p < bags.end(bag); p += blockDim.x) {
    check_in_table(ids[p], rows);
    bag_of_id[p] = static_cast<Id>(bag);
  }
  if (threadIdx.x == 0) {
    Id size = 0;
    for (int64_t p = bags.begin(bag); p < bags.end(bag); ++p) size += ids[p] != rows.padding_idx;
    bag_size[bag] = size;
  }
}

template <typename T, int kElements, typename Id>
__device__ void pool_largest(const BagLookup& b, const WeightedIds<T, Id>& ids, const BagOffsets<Id>& bags, int64_t bag,
                             int64_t chunk) {
  typename SumType<T>::Type largest[kElements];
  int64_t rows[kElements];
  for (int e = 0; e < kElements; ++e) {
    largest[e] = -std::numeric_limits<typename SumType<T>::Type>::infinity();
    rows[e] = kNotOwn;
  }
  const int64_t feature = chunk * kElements;
  take_largest<Elements<T, kElements>>(static_cast<const T*>(b.part), b.features, feature, ids, bags.begin(bag),
                                       bags.end(bag), largest, rows);
  const int64_t first = bag * b.features + feature;
  store_sum<T, kElements>(largest, reinterpret_cast<Elements<T, kElements>*>(static_cast<T*>(b.result) + first));
  Id* max_ids = static_cast<Id*>(b.max_ids) + first;
  for (int e = 0; e < kElements; ++e) max_ids[e] = static_cast<Id>(rows[e] == kNotOwn ? -1 : rows[e] + b.rows.offset);
}

template <typename T, int kElements, typename Id>
__device__ void pool_sum(const BagLookup& b, const WeightedIds<T, Id>& ids, const BagOffsets<Id>& bags, int64_t bag,
                         int64_t chunk) {
  typename SumType<T>::Type sum[kElements] = {};
  const int64_t feature = chunk * kElements;
  add_bag<Elements<T, kElements>>(static_cast<const T*>(b.part), b.features, feature, ids, bags.begin(bag),
                                  bags.end(bag), sum);
  if (b.mode == kBagMean) {
    int64_t size = 0;
    for (int64_t p = bags.begin(bag); p < bags.end(bag); ++p) size += ids.ids[p] != b.rows.padding_idx;
    for (int e = 0; e < kElements; ++e) sum[e] /= static_cast<typename SumType<T>::Type>(size > 0 ? size : 1);
  }
  T* to = static_cast<T*>(b.result) + bag * b.features + feature;
  store_sum<T, kElements>(sum, reinterpret_cast<Elements<T, kElements>*>(to));
}

// blockDim.y bags, each by blockDim.x threads, one per chunk at a time.
template <typename T, int kElements, typename Id>
__global__ void pool_bags(BagLookup b) {
  const BagOffsets<Id> bags{static_cast<const Id*>(b.offsets), b.num_bags, b.num_ids};
  const WeightedIds<T, Id> ids{static_cast<const Id*>(b.ids), static_cast<const T*>(b.weights), b.rows};
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y, chunks = b.features / kElements;
  for (int64_t bag = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y; bag < b.num_bags; bag += step) {
    check_on_device(bags.is_valid(bag), "embedding_bag: offsets must begin with 0, ascend and not exceed the ids",
                    __FILE__, __LINE__);
    describe_bag(bags, bag, ids.ids, b.rows, static_cast<Id*>(b.bag_of_id), static_cast<Id*>(b.bag_size));
    for (int64_t chunk = threadIdx.x; chunk < chunks; chunk += blockDim.x) {
      if (b.mode == kBagMax) {
        pool_largest<T, kElements, Id>(b, ids, bags, bag, chunk);
      } else {
        pool_sum<T, kElements, Id>(b, ids, bags, bag, chunk);
      }
    }
  }
}

template <typename T, int kElements, typename Id>
void launch_pool(const BagLookup& b, cudaStream_t stream) {
  const dim3 block = block_of(b.features / kElements, kThreads);
  pool_bags<T, kElements, Id><<<blocks_for(b.num_bags, block.y, kMaxBlocks), block, 0, stream>>>(b);
}

// The gradient of bags: a row gets the gradient of the bag of each of its ids.
template <typename T, typename Id>
struct BagSource {
  TypedBagGradient<T, Id> bags;
  int64_t offset;

  template <int kElements>
  __device__ void add(const int32_t* positions, int64_t row, int64_t first, int64_t begin, int64_t end, int64_t step,
                      int64_t chunk, typename SumType<T>::Type (&sum)[kElements]) const {
    bags.template add<Elements<T, kElements>>(positions, row + offset, first, begin, end, step, chunk * kElements, sum);
  }
};

constexpr unsigned kDotThreads = 32;  // of an id

// kThreads / kDotThreads ids per block; the sums of an id's threads are added in a fixed order.
template <typename T, typename Id>
__global__ void dot_ids(BagWeightsGradient g) {
  using Sum = typename SumType<T>::Type;
  __shared__ Sum partial[kThreads / kDotThreads][kDotThreads];
  const auto *ids = static_cast<const Id*>(g.ids), *bag_of_id = static_cast<const Id*>(g.bag_of_id);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.y; first < g.num_ids; first += step) {
    const int64_t p = first + threadIdx.y;
    Sum sum = 0;
    if (p < g.num_ids) {
      check_in_table(ids[p], g.rows);
      const int64_t row = gradient_row(ids[p], g.rows);
      if (row != kNotOwn) {
        sum = dot(static_cast<const T*>(g.grad) + bag_of_id[p] * g.features,
                  static_cast<const T*>(g.part) + row * g.features, g.features, threadIdx.x, kDotThreads);
      }
    }
    partial[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && p < g.num_ids) {
      for (unsigned i = 1; i < kDotThreads; ++i) sum += partial[threadIdx.y][i];
      static_cast<T*>(g.out)[p] = SumType<T>::narrow(sum);
    }
    __syncthreads();
  }
}

}  // namespace

const char* masked_embedding_bag(const BagLookup& b, void* cuda_stream) {
  if (b.num_bags == 0) return nullptr;
  const auto stream = static_cast<cudaStream_t>(cuda_stream);
  with_types(b.type, b.are_int32, [&](auto element, auto id) {
    using T = decltype(element);
    using Id = decltype(id);
    if (chunk_bytes(b.part, b.result, b.features * static_cast<int64_t>(sizeof(T))) == 16) {
      launch_pool<T, 16 / sizeof(T), Id>(b, stream);
    } else {
      launch_pool<T, 1, Id>(b, stream);
    }
  });
  return launch_error();
}

const char* masked_embedding_bag_backward(const BagGradient& g, void* scratch, size_t scratch_bytes,
                                          void* cuda_stream) {
  SortedIds sorted;
  const EmbeddingIds ids{g.ids, g.are_int32, g.num_ids};
  if (const char* error = sort_ids(ids, g.rows, scratch, scratch_bytes, sorted, cuda_stream)) return error;
  with_types(g.type, g.are_int32, [&](auto element, auto id) {
    const BagSource<decltype(element), decltype(id)> source{TypedBagGradient<decltype(element), decltype(id)>(g),
                                                            g.rows.offset};
    sum_by_row<decltype(element)>(source, g.grad, g.features, sorted, g.rows.size, g.out,
                                  static_cast<cudaStream_t>(cuda_stream));
  });
  return launch_error();
}

const char* masked_embedding_bag_weights_backward(const BagWeightsGradient& g, void* cuda_stream) {
  if (g.num_ids == 0) return nullptr;
  const dim3 block(kDotThreads, kThreads / kDotThreads);
  const unsigned blocks = blocks_for(g.num_ids, block.y, kMaxBlocks);
  with_types(g.type, g.are_int32, [&](auto element, auto id) {
    dot_ids<decltype(element), decltype(id)><<<blocks, block, 0, static_cast<cudaStream_t>(cuda_stream)>>>(g);
  });
  return launch_error();
}

}  // namespace dtensor::cuda
