// The parts of all ranks of a mesh as rectangles in a plane, for pictures.
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "plan/spec.h"

namespace dtensor::internal {

// Up to two tensor dims, the last one across: both of a matrix, the only one of a vector, else those that are sharded
// first and then the largest.
absl::InlinedVector<int64_t, 2> drawn_dims(const Spec& spec);

// Cuts of a tensor into cells, each held by the same ranks throughout. A dim that is not drawn counts as one of size 1.
struct LayoutGrid {
  // Ranks that hold addends of the same value (one where nothing is Partial); several such groups are replicas.
  using RankGroups = std::vector<int64_t>;

  absl::InlinedVector<int64_t, 2> dims;
  std::vector<int64_t> row_cuts, column_cuts;  // ascending, from 0 to the size; {0} for a dim of size 0
  std::vector<std::vector<RankGroups>> cells;  // row-major
  std::vector<int64_t> empty;                  // ranks that hold nothing
};

// For the first copy of a mesh that is a slice.
LayoutGrid layout_grid(const Spec& spec);

// Why a drawn cell is held by several ranks.
struct Sheets {
  int64_t copies = 1, addends = 1, cuts = 1;  // cuts: along dims that are not drawn
  ReduceOp op = ReduceOp::kSum;
  std::vector<int64_t> dims;  // mesh dims whose coordinate selects the sheet
  int64_t count() const { return copies * addends * cuts; }
};
Sheets sheets_of(const Spec& spec, const absl::InlinedVector<int64_t, 2>& drawn);
// "4 copies x 2 addends (sum)"; "" if there is one.
std::string describe(const Sheets& sheets);

// "0", "0,2", "0-7", "0+1, 2+3": groups with addends joined by '+'. Long lists are shortened.
std::string describe_holders(const std::vector<LayoutGrid::RankGroups>& groups);

// "3", "3, 5", "3-7"
std::string join_ranks(const std::vector<int64_t>& ranks, const char* separator);

}  // namespace dtensor::internal
