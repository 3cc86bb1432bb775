// Code shared by the forward and backward operators of embedding bags.
//
// The ids of all bags are concatenated; offsets hold the start of each bag. If the ids and a tensor with one entry per
// bag are sharded alike, each rank holds whole bags: the handler of the forward operator returns such a layout, or
// accepts such offsets, only then.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor::internal {

enum EmbeddingBagMode : int64_t { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

// For a dim on which `t` may be split: the first index that local rank i holds, and its rows as one run.
int64_t first_of(const Spec& spec, int64_t i);

// The bag that contains each of the positions [begin, begin + count): the last one that begins there or before.
// `offsets`: of all bags.
at::Tensor bags_of(const at::Tensor& offsets, int64_t begin, int64_t count);

// Ids that point into `rows` and are not `padding_idx`: their positions, and their values relative to the rows. Error
// (IndexError): an id outside [0, num_rows).
struct OwnIds {
  at::Tensor places, ids;
};
OwnIds own_ids(const at::Tensor& ids, const Run& rows, int64_t num_rows, int64_t padding_idx);

}  // namespace dtensor::internal
