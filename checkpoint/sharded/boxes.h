// Parts of a tensor that are one range of every dim, as files hold them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/geometry.h"

namespace dtensor::internal {

struct Box {
  Shape offsets, sizes;

  int64_t numel() const;
  friend bool operator==(const Box& a, const Box& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }
};

// A part as boxes: one, except where a strided shard has several ranges of a dim; none for an empty part.
std::vector<Box> boxes_of(const LocalLayout& part);
LocalLayout part_of(const Box& box);

// Cut along one dim into at most `n` boxes of about the same size.
std::vector<Box> cut(const Box& box, int64_t n);

// "" if the boxes are disjoint and cover a tensor of `shape`, else the fault, for an error. A tensor without elements
// may have empty boxes. REQUIRES: equal numbers of dims, no negative numbers.
std::string why_no_tiling(const Shape& shape, const std::vector<Box>& boxes);

}  // namespace dtensor::internal
