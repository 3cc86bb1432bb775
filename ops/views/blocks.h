// Blocks of a dim: what one Shard cuts is one block, a StridedShard(d, n) cuts n blocks each by itself. Slicing and
// splitting at their borders, and joining whole blocks, moves nothing: every rank takes its part of each block. That is
// how query, key and value of one matrix are taken apart where heads are sharded. Internal to ops/.
//
//   [12](_S(0, 3)).chunk(3)  ->  3 x [4](S(0))        cat of those  ->  [12](_S(0, 3))
//
// Each adds strategies, and the local computation that they need, to a rule that computes the dim `dim` whole.
#pragma once

#include "propagation/op_rule.h"

namespace dtensor {

void slice_at_borders(OpRule& rule);
void slice_backward_at_borders(OpRule& rule);
void split_at_borders(OpRule& rule);
void cat_at_borders(OpRule& rule);
// An empty list of numbers: cat() joins it with tensors of any shape, and it counts for nothing.
bool is_skipped_by_cat(const Spec& input);
// What reads the halves of a dim of `self` beside each other, as glu() does: every rank its part of both halves.
void halves_beside_each_other(OpRule& rule);

}  // namespace dtensor
