// Parts of a tensor that are one range of every dim, as files hold them. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/geometry.h"

namespace dtensor {

struct Box {
  Shape offsets, sizes;

  int64_t numel() const;
  friend bool operator==(const Box& a, const Box& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }
};

// A part as boxes: one, but where a strided shard left several ranges of a dim; none of an empty part.
std::vector<Box> boxes_of(const Part& part);
Part part_of(const Box& box);

// Cut along one dim into at most `n` boxes of about the same size.
std::vector<Box> cut(const Box& box, int64_t n);

// "" if the boxes are disjoint and together all of a tensor of `shape`, else what is wrong, for an error. A tensor
// without elements may have empty boxes. REQUIRES: as many dims everywhere, no negative numbers.
std::string why_no_tiling(const Shape& shape, const std::vector<Box>& boxes);

}  // namespace dtensor
