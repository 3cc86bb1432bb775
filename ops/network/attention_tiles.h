// Which queries of one rank see which keys of another, as rectangles and triangles of the table of scores.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "placement/geometry.h"

namespace dtensor::internal {

// Queries [q_begin, q_begin + q_size) and keys [k_begin, k_begin + k_size) of two parts. Causal: as many of both, at
// the same positions, and each query sees the keys up to its own; else each sees all.
struct AttentionTile {
  int64_t q_begin = 0, q_size = 0;
  int64_t k_begin = 0, k_size = 0;
  bool causal = false;
  int64_t k_index = 0;  // of the first key in the whole tensor; keys are in a row there
};

// Elements that a part has in a row, and that have successive positions in the sequence.
struct PartRun {
  int64_t index = 0;     // of the first one in the whole tensor
  int64_t position = 0;  // in the sequence
  int64_t size = 0;
};

// `runs`: indices of the sequence dim that a rank has. `order`: the positions of the whole dim, in the order of its
// indices; empty: an index is a position.
std::vector<PartRun> part_runs(const IndexRanges& runs, c10::ArrayRef<IndexRange> order);

// The tiles of a part of the queries and one of the keys; each pair that is seen is in one of them. No tile has more
// than `max_rows` queries.
std::vector<AttentionTile> attention_tiles(c10::ArrayRef<PartRun> queries, c10::ArrayRef<PartRun> keys, bool causal,
                                           int64_t max_rows);

}  // namespace dtensor::internal
