#include "checkpoint/sharded/boxes.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace dtensor::internal {
namespace {

bool overlaps(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] + a.sizes[d] <= b.offsets[d] || b.offsets[d] + b.sizes[d] <= a.offsets[d]) return false;
  }
  return true;
}

// The dim along which most boxes begin elsewhere: along it few of them lie side by side.
size_t dim_of_most_cuts(const std::vector<Box>& boxes) {
  size_t best = 0, most = 0;
  for (size_t d = 0; d < boxes[0].sizes.size(); ++d) {
    std::set<int64_t> offsets;
    for (const Box& box : boxes) offsets.insert(box.offsets[d]);
    if (offsets.size() > most) best = d;
    most = std::max(most, offsets.size());
  }
  return best;
}

// Two boxes that have elements in common; {-1, -1}: there are none. Sweeps along a dim.
std::pair<int64_t, int64_t> find_overlap(const std::vector<Box>& boxes) {
  if (boxes.empty()) return {-1, -1};
  if (boxes[0].sizes.empty())
    return boxes.size() > 1 ? std::pair<int64_t, int64_t>(0, 1) : std::pair<int64_t, int64_t>(-1, -1);
  const size_t d = dim_of_most_cuts(boxes);
  std::vector<int64_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return boxes[a].offsets[d] < boxes[b].offsets[d]; });
  std::vector<int64_t> open;  // that reach beyond where the sweep is
  for (const int64_t i : order) {
    std::erase_if(open, [&](int64_t k) { return boxes[k].offsets[d] + boxes[k].sizes[d] <= boxes[i].offsets[d]; });
    for (const int64_t k : open) {
      if (overlaps(boxes[k], boxes[i])) return {std::min(i, k), std::max(i, k)};
    }
    open.push_back(i);
  }
  return {-1, -1};
}

std::string text(const Box& box) {
  return c10::str("offsets ", c10::IntArrayRef(box.offsets.data(), box.offsets.size()), " and sizes ",
                  c10::IntArrayRef(box.sizes.data(), box.sizes.size()));
}

}  // namespace

int64_t Box::numel() const {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

std::vector<Box> boxes_of(const LocalLayout& part) {
  std::vector<Box> boxes(1);
  for (const IndexRanges& runs : part.dims) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const IndexRange& run : runs) {
        longer.push_back(box);
        longer.back().offsets.push_back(run.begin);
        longer.back().sizes.push_back(run.size);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

LocalLayout part_of(const Box& box) { return box_part(box.offsets, box.sizes); }

std::vector<Box> cut(const Box& box, int64_t n) {
  const auto dim = std::find_if(box.sizes.begin(), box.sizes.end(), [&](int64_t size) { return size >= n; });
  if (n < 2 || dim == box.sizes.end()) return {box};
  const size_t d = dim - box.sizes.begin();
  std::vector<Box> pieces;
  for (int64_t i = 0; i < n; ++i) {
    const IndexRange run = chunk(box.sizes[d], n, i);
    if (run.size == 0) continue;
    pieces.push_back(box);
    pieces.back().offsets[d] += run.begin;
    pieces.back().sizes[d] = run.size;
  }
  return pieces;
}

std::string why_no_tiling(const Shape& shape, const std::vector<Box>& boxes) {
  const int64_t all = Box{{}, shape}.numel();
  int64_t covered = 0;
  std::vector<Box> filled;
  for (const Box& box : boxes) {
    for (size_t d = 0; d < shape.size(); ++d) {
      if (box.offsets[d] > shape[d] || box.sizes[d] > shape[d] - box.offsets[d])
        return "a box of " + text(box) + " reaches beyond the tensor";
    }
    if (box.numel() == 0) continue;
    filled.push_back(box);
    if (__builtin_add_overflow(covered, box.numel(), &covered)) return "its boxes overlap";
  }
  if (const auto [a, b] = find_overlap(filled); a >= 0)
    return "the boxes of " + text(filled[a]) + " and of " + text(filled[b]) + " overlap";
  if (covered != all) return c10::str("its boxes have ", covered, " elements, it has ", all);
  return "";
}

}  // namespace dtensor::internal
