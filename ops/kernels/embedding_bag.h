// Embedding bags over the rows of a table that one rank holds, and their gradients: what is computed for one bag, one
// row or one id. For host and device code.
//
// The ids of all bags are concatenated; a bag's ids that have no row here add nothing. Of means, each rank divides by
// the number of all ids of the bag, so that the results of all ranks add up to the mean; of maxima, the largest result
// of all ranks is the maximum. Ids that are padding_idx do not count.
#pragma once

#include "ops/kernels/embedding.h"

namespace dtensor::internal {

enum EmbeddingBagMode : int64_t { kBagSum = 0, kBagMean = 1, kBagMax = 2 };  // the numbers of at::embedding_bag

// The arguments of the kernels point to contiguous memory of one device; all integers are int32_t or int64_t.

struct BagLookup {
  const void* part = nullptr;  // [rows.size, features]
  ElementType type = ElementType::kFloat;
  int64_t features = 0;
  TableRows rows;
  EmbeddingBagMode mode = kBagSum;
  bool are_int32 = false;
  const void *ids = nullptr, *offsets = nullptr;  // where each bag begins
  int64_t num_ids = 0, num_bags = 0;
  const void* weights = nullptr;                   // of ids, for kBagSum; null: all are 1
  void* result = nullptr;                          // [num_bags, features]; maxima of no rows are -infinity
  void *bag_of_id = nullptr, *bag_size = nullptr;  // [num_ids]; [num_bags], without padding
  void* max_ids = nullptr;                         // for kBagMax: [num_bags, features], -1 where there is no row
};

// The gradient of the rows. `bag_of_id`, `bag_size` and `max_ids` are results of the lookup.
struct BagGradient {
  const void* grad = nullptr;  // [bags, features]
  ElementType type = ElementType::kFloat;
  int64_t features = 0;
  TableRows rows;
  bool are_int32 = false;
  const void *ids = nullptr, *bag_of_id = nullptr;
  int64_t num_ids = 0;             // at most 2^31 - 1
  const void* weights = nullptr;   // null: all are 1
  const void* bag_size = nullptr;  // for kBagMean, else null
  const void* max_ids = nullptr;   // for kBagMax, else null
  void* out = nullptr;             // [rows.size, features]
};

// The gradient of `weights`: 0 for padding and ids without a row here.
struct BagWeightsGradient {
  const void *grad = nullptr, *part = nullptr;  // [bags, features], [rows.size, features]
  ElementType type = ElementType::kFloat;
  int64_t features = 0;
  TableRows rows;
  bool are_int32 = false;
  const void *ids = nullptr, *bag_of_id = nullptr;
  int64_t num_ids = 0;
  void* out = nullptr;  // [num_ids]
};

// Which ids are those of a bag: the last bag ends where the ids end.
template <typename Id>
struct BagOffsets {
  const Id* offsets;
  int64_t num_bags, num_ids;

  DTENSOR_HOST_DEVICE int64_t begin(int64_t bag) const { return static_cast<int64_t>(offsets[bag]); }
  DTENSOR_HOST_DEVICE int64_t end(int64_t bag) const {
    return bag + 1 < num_bags ? static_cast<int64_t>(offsets[bag + 1]) : num_ids;
  }
  // If it holds for all bags, each id belongs to one of them.
  DTENSOR_HOST_DEVICE bool is_valid(int64_t bag) const {
    const bool begins = bag == 0 ? begin(bag) == 0 : begin(bag) >= 0;
    return begins && begin(bag) <= end(bag) && end(bag) <= num_ids;
  }
};

// Elements without the alignment of Elements.
template <typename T, int kElements>
struct UnalignedElements {
  T values[kElements];
};

template <typename Pack, typename T>
DTENSOR_HOST_DEVICE Pack read_elements(const T* from) {
  return *reinterpret_cast<const Pack*>(from);
}

template <typename T>
DTENSOR_HOST_DEVICE typename SumType<T>::Type weight_at(const T* weights, int64_t position) {
  return weights == nullptr ? typename SumType<T>::Type(1) : SumType<T>::widen(weights[position]);
}

// Ids as the functions below take them: the row and the weight of the k-th.
template <typename T, typename Id>
struct WeightedIds {
  const Id* ids;
  const T* weights;
  TableRows rows;

  DTENSOR_HOST_DEVICE int64_t row(int64_t k) const { return gradient_row(static_cast<int64_t>(ids[k]), rows); }
  DTENSOR_HOST_DEVICE typename SumType<T>::Type weight(int64_t k) const { return weight_at(weights, k); }
};

// Adds kElements features from `feature` on of the rows of ids [begin, end), in this order.
template <typename Pack, typename T, int kElements, typename Ids>
DTENSOR_HOST_DEVICE void add_bag(const T* part, int64_t features, int64_t feature, const Ids& ids, int64_t begin,
                                 int64_t end, typename SumType<T>::Type (&sum)[kElements]) {
  for (int64_t k = begin; k < end; ++k) {
    const int64_t row = ids.row(k);
    if (row == kNotOwn) continue;
    const typename SumType<T>::Type weight = ids.weight(k);
    const Pack one = read_elements<Pack>(part + row * features + feature);
    for (int e = 0; e < kElements; ++e) sum[e] += weight * SumType<T>::widen(one.values[e]);
  }
}

// As add_bag(), the largest elements and their rows. As in ATen the first of equal ones counts, and NaN only if it is
// the first. `rows` begins with kNotOwn, and stays so where there is no row.
template <typename Pack, typename T, int kElements, typename Ids>
DTENSOR_HOST_DEVICE void take_largest(const T* part, int64_t features, int64_t feature, const Ids& ids, int64_t begin,
                                      int64_t end, typename SumType<T>::Type (&largest)[kElements],
                                      int64_t (&rows)[kElements]) {
  for (int64_t k = begin; k < end; ++k) {
    const int64_t row = ids.row(k);
    if (row == kNotOwn) continue;
    const Pack one = read_elements<Pack>(part + row * features + feature);
    for (int e = 0; e < kElements; ++e) {
      const typename SumType<T>::Type value = SumType<T>::widen(one.values[e]);
      const bool is_larger = rows[e] == kNotOwn || value > largest[e];
      largest[e] = is_larger ? value : largest[e];
      rows[e] = is_larger ? row : rows[e];
    }
  }
}

// BagGradient with the types of its memory.
template <typename T, typename Id>
struct TypedBagGradient {
  const T* grad;
  int64_t features;
  const Id* bag_of_id;
  const T* weights;
  const Id* bag_size;
  const Id* max_ids;

  DTENSOR_HOST_DEVICE explicit TypedBagGradient(const BagGradient& g)
      : grad(static_cast<const T*>(g.grad)),
        features(g.features),
        bag_of_id(static_cast<const Id*>(g.bag_of_id)),
        weights(static_cast<const T*>(g.weights)),
        bag_size(static_cast<const Id*>(g.bag_size)),
        max_ids(static_cast<const Id*>(g.max_ids)) {}

  // Adds kElements features from `feature` on of the gradient of table row `id`, for its ids at positions[begin],
  // positions[begin + step], ... before positions[end], in this order. positions[first] is the row's first.
  template <typename Pack, int kElements>
  DTENSOR_HOST_DEVICE void add(const int32_t* positions, int64_t id, int64_t first, int64_t begin, int64_t end,
                               int64_t step, int64_t feature, typename SumType<T>::Type (&sum)[kElements]) const {
    using Sum = typename SumType<T>::Type;
    for (int64_t k = begin; k < end; k += step) {
      const int64_t bag = bag_of_id[positions[k]];
      // The gradient of a maximum goes to a row once, however often its id is in the bag.
      if (max_ids != nullptr && k > first && bag_of_id[positions[k - 1]] == bag) continue;
      const Pack one = read_elements<Pack>(grad + bag * features + feature);
      if (max_ids != nullptr) {
        const Id* of_bag = max_ids + bag * features + feature;
        for (int e = 0; e < kElements; ++e) sum[e] += of_bag[e] == id ? SumType<T>::widen(one.values[e]) : Sum(0);
        continue;
      }
      Sum scale = weight_at(weights, positions[k]);
      if (bag_size != nullptr) scale /= static_cast<Sum>(bag_size[bag]);
      for (int e = 0; e < kElements; ++e) sum[e] += scale * SumType<T>::widen(one.values[e]);
    }
  }
};

// The sum of products of elements `first`, `first + step`, ... of two rows.
template <typename T>
DTENSOR_HOST_DEVICE typename SumType<T>::Type dot(const T* a, const T* b, int64_t features, int64_t first,
                                                  int64_t step) {
  typename SumType<T>::Type sum = 0;
  for (int64_t f = first; f < features; f += step) sum += SumType<T>::widen(a[f]) * SumType<T>::widen(b[f]);
  return sum;
}

}  // namespace dtensor::internal
