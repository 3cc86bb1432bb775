#include "ops/kernels/cpu/embedding_bag.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <limits>

#include "comm/parallel_for.h"
#include "ops/kernels/cpu/positions_by_row.h"

namespace dtensor {

namespace internal {

template <>
struct SumType<c10::Half> {
  using Type = float;
  static float widen(c10::Half value) { return value; }
  static c10::Half narrow(float sum) { return sum; }
};

template <>
struct SumType<c10::BFloat16> {
  using Type = float;
  static float widen(c10::BFloat16 value) { return value; }
  static c10::BFloat16 narrow(float sum) { return sum; }
};

}  // namespace internal

namespace cpu {
using namespace internal;

namespace {

template <typename T>
using Sum = typename SumType<T>::Type;

// f(T(), Id()) for the types of elements and integers.
template <typename F>
void with_types(ElementType type, bool are_int32, const F& f) {
  const auto with_elements = [&](auto id) {
    switch (type) {
      case ElementType::kHalf:
        return f(c10::Half(), id);
      case ElementType::kBFloat16:
        return f(c10::BFloat16(), id);
      case ElementType::kFloat:
        return f(float(), id);
      case ElementType::kDouble:
        return f(double(), id);
    }
  };
  are_int32 ? with_elements(int32_t()) : with_elements(int64_t());
}

// f(number of elements, first feature) for pieces of a row, the number as a constant. A piece of many elements is read
// as a stream, and its sums stay in the nearest cache.
template <typename F>
void for_pieces(int64_t features, const F& f) {
  int64_t feature = 0;
  for (; feature + 32 <= features; feature += 32) f(std::integral_constant<int, 32>(), feature);
  for (; feature + 8 <= features; feature += 8) f(std::integral_constant<int, 8>(), feature);
  for (; feature < features; ++feature) f(std::integral_constant<int, 1>(), feature);
}

// The beginning of a row: which row comes next the processor cannot know; the rest of a long row it can.
void prefetch_row(const void* row, int64_t bytes) {
  for (int64_t b = 0; b < std::min<int64_t>(bytes, 512); b += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + b);
  }
}
constexpr int64_t kAhead = 16;  // rows

// An id with a row here.
struct OwnId {
  int64_t row, position;
};

// Ids as add_bag() takes them.
template <typename T>
struct OwnIdsOfBags {
  const OwnId* ids;
  const T* weights;

  int64_t row(int64_t k) const { return ids[k].row; }
  Sum<T> weight(int64_t k) const { return weight_at(weights, ids[k].position); }
};

template <typename T, typename Id>
class PoolBags {
 public:
  explicit PoolBags(const BagLookup& b)
      : b_(b), bags_{static_cast<const Id*>(b.offsets), b.num_bags, b.num_ids}, ids_(static_cast<const Id*>(b.ids)) {}

  void run() const {
    for (int64_t bag = 0; bag < b_.num_bags; ++bag) {
      TORCH_CHECK_INDEX(bags_.is_valid(bag), "embedding_bag: offsets must begin with 0, ascend and not exceed the ",
                        b_.num_ids, " ids, but bag ", bag, " has ids from ", bags_.begin(bag), " to ", bags_.end(bag));
    }
    const int64_t ids_per_bag = b_.num_ids / std::max<int64_t>(b_.num_bags, 1) + 1;
    const int64_t grain = grain_of(ids_per_bag * b_.features * sizeof(T));
    parallel_for(0, b_.num_bags, grain, [&](int64_t begin, int64_t end) {
      std::vector<OwnId> own;
      std::vector<int64_t> ends;
      while (begin < end) {
        const int64_t last = last_of_group(begin, end);
        own.resize(std::max<size_t>(own.size(), bags_.end(last - 1) - bags_.begin(begin) + 1));
        find_own(begin, last, own, ends);
        pool_group(begin, ends, own);
        begin = last;
      }
    });
  }

 private:
  // Bags of a few thousand ids together, at least one, so that what is known of them stays in the caches.
  int64_t last_of_group(int64_t begin, int64_t end) const {
    int64_t last = begin + 1;
    while (last < end && bags_.end(last) - bags_.begin(begin) <= 4096) ++last;
    return last;
  }

  // Ids without a row are left out without a branch for each, as which they are cannot be predicted. Those of bag
  // `begin` + i end at ends[i].
  void find_own(int64_t begin, int64_t end, std::vector<OwnId>& own, std::vector<int64_t>& ends) const {
    ends.clear();
    // Locals, which what is written here cannot be.
    const TableRows rows = b_.rows;
    const Id* __restrict ids = ids_;
    OwnId* __restrict to = own.data();
    Id* __restrict bag_of_id = static_cast<Id*>(b_.bag_of_id);
    bool wrong = false;
    for (int64_t bag = begin; bag < end; ++bag) {
      const int64_t first = bags_.begin(bag), last = bags_.end(bag);
      int64_t padding = 0;
      for (int64_t p = first; p < last; ++p) {
        const int64_t id = ids[p], row = gradient_row(id, rows);
        wrong |= !is_in_table(id, rows);
        padding += id == rows.padding_idx;
        *to = {row, p};
        to += row != kNotOwn;
        bag_of_id[p] = static_cast<Id>(bag);
      }
      static_cast<Id*>(b_.bag_size)[bag] = static_cast<Id>(last - first - padding);
      ends.push_back(to - own.data());
    }
    if (wrong) say_wrong_id(bags_.begin(begin), bags_.end(end - 1));
  }

  void say_wrong_id(int64_t begin, int64_t end) const {
    for (int64_t p = begin; p < end; ++p) {
      TORCH_CHECK_INDEX(is_in_table(ids_[p], b_.rows),
                        "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be ", ids_[p],
                        " of ", b_.rows.num_rows, " rows");
    }
  }

  void pool_group(int64_t first_bag, const std::vector<int64_t>& ends, const std::vector<OwnId>& own) const {
    const T* part = static_cast<const T*>(b_.part);
    const OwnIdsOfBags<T> ids{own.data(), static_cast<const T*>(b_.weights)};
    int64_t begin = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      const int64_t end = ends[i], bag = first_bag + static_cast<int64_t>(i);
      for (int64_t k = begin + kAhead; k < std::min(end + kAhead, ends.back()); ++k) {
        prefetch_row(part + own[k].row * b_.features, b_.features * sizeof(T));
      }
      for_pieces(b_.features, [&](auto elements, int64_t feature) {
        constexpr int kElements = decltype(elements)::value;
        b_.mode == kBagMax ? pool_largest<kElements>(ids, begin, end, bag, feature)
                           : pool_sum<kElements>(ids, begin, end, bag, feature);
      });
      begin = end;
    }
  }

  template <int kElements>
  void pool_sum(const OwnIdsOfBags<T>& ids, int64_t begin, int64_t end, int64_t bag, int64_t feature) const {
    Sum<T> sum[kElements] = {};
    add_bag<UnalignedElements<T, kElements>>(static_cast<const T*>(b_.part), b_.features, feature, ids, begin, end,
                                             sum);
    if (b_.mode == kBagMean) {
      const auto size = static_cast<Sum<T>>(std::max<Id>(static_cast<const Id*>(b_.bag_size)[bag], 1));
      for (int e = 0; e < kElements; ++e) sum[e] /= size;
    }
    T* to = static_cast<T*>(b_.result) + bag * b_.features + feature;
    for (int e = 0; e < kElements; ++e) to[e] = SumType<T>::narrow(sum[e]);
  }

  template <int kElements>
  void pool_largest(const OwnIdsOfBags<T>& ids, int64_t begin, int64_t end, int64_t bag, int64_t feature) const {
    Sum<T> largest[kElements];
    int64_t rows[kElements];
    std::fill(largest, largest + kElements, -std::numeric_limits<Sum<T>>::infinity());
    std::fill(rows, rows + kElements, kNotOwn);
    take_largest<UnalignedElements<T, kElements>>(static_cast<const T*>(b_.part), b_.features, feature, ids, begin, end,
                                                  largest, rows);
    T* to = static_cast<T*>(b_.result) + bag * b_.features + feature;
    Id* max_ids = static_cast<Id*>(b_.max_ids) + bag * b_.features + feature;
    for (int e = 0; e < kElements; ++e) {
      to[e] = SumType<T>::narrow(largest[e]);
      max_ids[e] = static_cast<Id>(rows[e] == kNotOwn ? -1 : rows[e] + b_.rows.offset);
    }
  }

  const BagLookup& b_;
  const BagOffsets<Id> bags_;
  const Id* ids_;
};

template <typename T, typename Id>
void sum_bags_by_row(const BagGradient& g) {
  const PositionsByRow by_row = positions_by_row(static_cast<const Id*>(g.ids), g.num_ids, g.rows);
  const TypedBagGradient<T, Id> typed(g);
  const int32_t* order = by_row.order.data();
  const auto row_bytes = static_cast<int64_t>(g.features * sizeof(T));
  const bool past_caches = g.rows.size * row_bytes >= kPastCaches;
  by_row.for_rows(g.rows.size, row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = by_row.starts[row], last = by_row.starts[row + 1];
      T* to = static_cast<T*>(g.out) + row * g.features;
      if (first == last) {
        write_zeros(reinterpret_cast<char*>(to), row_bytes, past_caches);
        continue;
      }
      const auto known = static_cast<int64_t>(by_row.order.size());
      for (int64_t k = first + kAhead; k < std::min(last + kAhead, known); ++k) {
        prefetch_row(typed.grad + typed.bag_of_id[order[k]] * g.features, row_bytes);
      }
      for_pieces(g.features, [&](auto elements, int64_t feature) {
        constexpr int kElements = decltype(elements)::value;
        Sum<T> sum[kElements] = {};
        typed.template add<UnalignedElements<T, kElements>>(order, row + g.rows.offset, first, first, last, 1, feature,
                                                            sum);
        for (int e = 0; e < kElements; ++e) to[feature + e] = SumType<T>::narrow(sum[e]);
      });
    }
    if (past_caches) close_stores();
  });
}

template <typename T, typename Id>
void dot_by_id(const BagWeightsGradient& g) {
  const auto *grad = static_cast<const T*>(g.grad), *part = static_cast<const T*>(g.part);
  const auto *ids = static_cast<const Id*>(g.ids), *bag_of_id = static_cast<const Id*>(g.bag_of_id);
  parallel_for(0, g.num_ids, grain_of(g.features * sizeof(T)), [&](int64_t begin, int64_t end) {
    constexpr int kSums = 8;  // at a time, added up in a fixed order
    for (int64_t p = begin; p < end; ++p) {
      TORCH_CHECK_INDEX(is_in_table(ids[p], g.rows), "index out of range in self");
      const int64_t row = gradient_row(ids[p], g.rows);
      Sum<T> sum = 0;
      if (row != kNotOwn) {
        for (int i = 0; i < kSums; ++i) {
          sum += dot(grad + bag_of_id[p] * g.features, part + row * g.features, g.features, i, kSums);
        }
      }
      static_cast<T*>(g.out)[p] = SumType<T>::narrow(sum);
    }
  });
}

}  // namespace

void masked_embedding_bag(const BagLookup& b) {
  with_types(b.type, b.are_int32, [&](auto element, auto id) { PoolBags<decltype(element), decltype(id)>(b).run(); });
}

void masked_embedding_bag_backward(const BagGradient& g) {
  with_types(g.type, g.are_int32, [&](auto element, auto id) { sum_bags_by_row<decltype(element), decltype(id)>(g); });
}

void masked_embedding_bag_weights_backward(const BagWeightsGradient& g) {
  with_types(g.type, g.are_int32, [&](auto element, auto id) { dot_by_id<decltype(element), decltype(id)>(g); });
}

}  // namespace cpu
}  // namespace dtensor
