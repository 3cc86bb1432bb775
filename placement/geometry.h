// Which part of a tensor a rank holds.
//
// Everything follows from one rule, torch.chunk's: n pieces of a dim of size N are ceil(N / n) long, the last one
// shorter, the rest empty. Placements apply left to right, each to what the ones before it left, so nested shards of
// one dim over several mesh dims need no rule of their own. A StridedShard leaves several runs of a dim, so the part of
// a rank is, per tensor dim, a list of runs; a box is the case of one run each.
//
//   local_layout({10, 8}, {2, 2}, {Shard(0), Shard(0)}, {1, 0});  // dim 0: [5, 8), dim 1: [0, 8)
//
// The planner, the executor and the tests all use these functions; nothing else computes offsets.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <vector>

#include "placement/placement.h"

namespace dtensor {

// A run: the indices [begin, begin + size) of one dim of the global tensor.
struct IndexRange {
  int64_t begin = 0;
  int64_t size = 0;
  int64_t end() const { return begin + size; }
  friend bool operator==(const IndexRange& a, const IndexRange& b) { return a.begin == b.begin && a.size == b.size; }
};

// The indices of one dim that a rank holds, in the order in which it stores them. That order ascends, since no
// placement reorders what it cuts. No run is empty (an empty part has no runs); runs that touch are merged.
using IndexRanges = c10::SmallVector<IndexRange, 2>;

namespace internal {

int64_t total_size(const IndexRanges& runs);

// Piece i of torch.chunk over n pieces of a dim of `size`; an empty piece begins at `size`. REQUIRES: 0 <= i < n.
IndexRange chunk(int64_t size, int64_t n, int64_t i);

// The part of `runs` that a placement assigns to the i-th of n ranks. Placements other than Shard and StridedShard
// assign all; whether the placement's dim is the one that `runs` describes is the caller's concern.
IndexRanges shard_runs(const IndexRanges& runs, const Placement& placement, int64_t n, int64_t i);

}  // namespace internal

// The indices that a rank holds of each dim of a tensor.
struct LocalLayout {
  c10::SmallVector<IndexRanges, 4> dims;

  Shape sizes() const;
  // First global index per dim; the dim's size where the part is empty. Meaningful when is_box().
  Shape offsets;
  bool is_box() const;
  bool empty() const;
  int64_t numel() const;
};

namespace internal {

// The part that is a box; empty along dims of size 0.
LocalLayout box_part(c10::ArrayRef<int64_t> offsets, c10::ArrayRef<int64_t> sizes);

}  // namespace internal

// The part held by the rank at `coordinate` (one entry per mesh dim) of a mesh of `mesh_shape`.
// REQUIRES: placements.size() == mesh_shape.size() == coordinate.size(), dims normalised.
LocalLayout local_layout(c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> mesh_shape, const Placements& placements,
                         c10::ArrayRef<int64_t> coordinate);

// Its sizes alone.
Shape local_shape(c10::ArrayRef<int64_t> shape, c10::ArrayRef<int64_t> mesh_shape, const Placements& placements,
                  c10::ArrayRef<int64_t> coordinate);

namespace internal {

// A block that two parts share, with its position in each one's local storage. Maximal: elements adjacent in both parts
// are one block, even where the global indices jump.
struct Block {
  Shape from;  // local offsets in the first part
  Shape to;    // local offsets in the second part
  Shape sizes;
};

// Every block that `source` and `target` (parts of tensors of the same global shape) have in common, in row-major order
// of the target. Together the blocks of all sources that partition the tensor cover `target` exactly once.
std::vector<Block> overlap(const LocalLayout& source, const LocalLayout& target);

// Elements that the two parts have in common.
int64_t overlap_numel(const LocalLayout& source, const LocalLayout& target);

}  // namespace internal

}  // namespace dtensor
