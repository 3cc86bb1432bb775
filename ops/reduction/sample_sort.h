// The sort of a vector that is sharded over ranks, without gathering it on any rank: a sample sort (Frazer, McKellar,
// Samplesort, 1970). Every rank sorts its part; regular samples of all parts determine the cuts; elements go to the
// rank of their bucket, and from there, in order, to their place in the layout.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace dtensor::internal {

// Samples that each rank sends: the sizes of buckets differ by about 1/32 of a part.
inline constexpr int64_t kSamplesPerRank = 32;

struct ValuesAndIndices {
  at::Tensor values, indices;
};

// `self` in ascending or descending order, in the layout of `self`, and the global indices of its elements. Stable; nan
// last in ascending order. REQUIRES: `self` has one dim, sharded along one mesh dim, and elements that are
// neither complex nor uint64.
ValuesAndIndices sorted_vector(const c10::OperatorHandle& op, const at::Tensor& self, bool descending);

// The most frequent value of `self`, the smallest of several, and an index of it. REQUIRES: as sorted_vector().
ValuesAndIndices mode_of_vector(const c10::OperatorHandle& op, const at::Tensor& self);

}  // namespace dtensor::internal
