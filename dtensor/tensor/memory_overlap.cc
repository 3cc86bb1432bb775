#include "dtensor/tensor/memory_overlap.h"

#include <algorithm>
#include <vector>

namespace dtensor::internal {
namespace {

// A stride of `stride` elements, taken from `least` to `most` times.
struct Steps {
  int64_t stride, least, most;
};

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Whether such steps, the longest first, add up to `distance`. `budget`: attempts left.
bool reachable(const std::vector<Steps>& steps, size_t next, int64_t distance, int& budget) {
  if (--budget < 0) return true;
  if (next == steps.size()) return distance == 0;
  int64_t least = 0, most = 0;  // sum of the other steps
  for (size_t k = next + 1; k < steps.size(); ++k) {
    least += steps[k].stride * steps[k].least;
    most += steps[k].stride * steps[k].most;
  }
  const Steps& s = steps[next];
  const int64_t first = std::max(s.least, floor_div(distance - most + s.stride - 1, s.stride));
  const int64_t last = std::min(s.most, floor_div(distance - least, s.stride));
  for (int64_t count = first; count <= last; ++count) {
    if (reachable(steps, next + 1, distance - count * s.stride, budget)) return true;
  }
  return false;
}

}  // namespace

bool overlaps_itself(const at::Tensor& t) {
  if (t.numel() < 2 || t.is_non_overlapping_and_dense()) return false;
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) > 1) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return t.stride(a) < t.stride(b); });
  int64_t extent = 0;  // of the dims inside
  for (int64_t d : dims) {
    if (t.stride(d) <= extent) return true;
    extent += t.stride(d) * (t.size(d) - 1);
  }
  return false;
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || !a.is_alias_of(b)) return false;
  std::vector<Steps> steps;
  for (int64_t d = 0; d < a.dim(); ++d) {
    if (a.stride(d) > 0) steps.push_back({a.stride(d), 0, a.size(d) - 1});
  }
  for (int64_t d = 0; d < b.dim(); ++d) {
    if (b.stride(d) > 0) steps.push_back({b.stride(d), 1 - b.size(d), 0});
  }
  std::sort(steps.begin(), steps.end(), [](const Steps& x, const Steps& y) { return x.stride > y.stride; });
  int budget = 10000;
  return reachable(steps, 0, b.storage_offset() - a.storage_offset(), budget);
}

std::vector<bool> which_overlap(c10::ArrayRef<at::Tensor> tensors) {
  // Sorted by their start, tensors that may overlap are neighbours.
  struct Extent {
    uintptr_t begin, end;
    size_t index;
  };
  std::vector<Extent> extents;
  std::vector<bool> result(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& t = tensors[i];
    result[i] = overlaps_itself(t);
    if (t.numel() == 0) continue;
    int64_t last = 0;  // element
    for (int64_t d = 0; d < t.dim(); ++d) last += t.stride(d) * (t.size(d) - 1);
    const auto begin = reinterpret_cast<uintptr_t>(t.const_data_ptr());
    extents.push_back({begin, begin + (last + 1) * t.element_size(), i});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t a = 0; a < extents.size(); ++a) {
    for (size_t b = a + 1; b < extents.size() && extents[b].begin < extents[a].end; ++b) {
      const size_t i = extents[a].index, k = extents[b].index;
      if ((result[i] && result[k]) || !overlap(tensors[i], tensors[k])) continue;
      result[i] = result[k] = true;
    }
  }
  return result;
}

}  // namespace dtensor::internal
