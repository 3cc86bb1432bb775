// Code shared by the forward and backward operators of embedding bags.
//
// The ids of all bags are concatenated; offsets hold the start of each bag. If the ids and a tensor with one entry per
// bag are sharded alike, each rank holds whole bags: the handler of the forward operator returns such a layout, or
// accepts such offsets, only then.
#pragma once

#include "ops/embedding/masked_embedding_bag.h"
#include "plan/spec.h"

namespace dtensor::internal {

// For a dim on which `t` may be split: the first index that local rank i holds, and its rows as one run.
int64_t first_of(const Spec& spec, int64_t i);

// own_rows(), as an argument of the functions of masked_embedding_bag.h.
TableRows table_rows(const Spec& table, int64_t i, int64_t padding_idx);

}  // namespace dtensor::internal
