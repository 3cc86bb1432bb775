// Blocks of a dim: a Shard cuts the dim as one block, a StridedShard(d, n) cuts each of n blocks separately. Slicing
// and splitting at block borders, and concatenating whole blocks, communicates nothing: every rank takes its part of
// each block. This splits a fused query-key-value matrix where heads are sharded.
//
//   [12](_S(0, 3)).chunk(3)  ->  3 x [4](S(0))        cat of those  ->  [12](_S(0, 3))
//
// Each function adds strategies, with their local computation, to a rule that needs the dim `dim` whole, unless all of
// it or nothing is taken, which the local computation also serves.
#pragma once

#include <cstdint>
#include <vector>

#include "propagation/op_rule.h"

namespace dtensor::internal {

void slice_at_borders(OpRule& rule);
// Whether that strategy serves the slice of `count` indices of `dim`, start, start + step, ...: it moves nothing.
bool is_at_borders(const Spec& spec, int64_t dim, int64_t start, int64_t count, int64_t step);
void slice_backward_at_borders(OpRule& rule);
void slice_scatter_at_borders(OpRule& rule);
void split_at_borders(OpRule& rule);
void cat_at_borders(OpRule& rule);
// An empty 1-d tensor: cat() accepts it next to tensors of any shape and ignores it.
bool is_skipped_by_cat(const Spec& input);
// The sizes of the results of a split of a dim of `size`.
std::vector<int64_t> piece_sizes(const OpCall& call, int64_t size);
// For operators such as glu() that combine the two halves of a dim of `self`: every rank uses its part of both halves.
void halves_beside_each_other(OpRule& rule);

}  // namespace dtensor::internal
