// What the forward and the backward operators of embedding bags share. Internal to ops/.
//
// Ids of all bags stand one after the other; offsets say where each bag begins. Layouts in which ids and bags are split
// alike, so that each rank holds whole bags, are told by the split of what has one entry per bag beside that of the
// ids: the handler of the forward operator gives results such a layout, or takes such offsets, only where that is so.
#pragma once

#include <ATen/core/Tensor.h>

#include "placement/geometry.h"
#include "plan/spec.h"

namespace dtensor {

enum EmbeddingBagMode : int64_t { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

// Of a dim that `t` may be split on: the first index that local rank i holds, and the rows as one run.
int64_t first_of(const Spec& spec, int64_t i);

// The bag of each of the places [begin, begin + count): the last one that begins there or before. `offsets`: of all
// bags.
at::Tensor bags_of(const at::Tensor& offsets, int64_t begin, int64_t count);

// Ids that point into `rows` and are not `padding_idx`: where they stand, and what they are within the rows.
// Error (IndexError): an id outside [0, num_rows).
struct OwnIds {
  at::Tensor places, ids;
};
OwnIds own_ids(const at::Tensor& ids, const Run& rows, int64_t num_rows, int64_t padding_idx);

}  // namespace dtensor
