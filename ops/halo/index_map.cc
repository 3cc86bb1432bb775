#include "ops/halo/index_map.h"

#include <algorithm>

namespace dtensor::internal {
namespace {

IndexMap map_of(int64_t size, std::vector<Stretch> stretches) {
  stretches.erase(std::remove_if(stretches.begin(), stretches.end(), [](const Stretch& s) { return s.size <= 0; }),
                  stretches.end());
  return {size, std::move(stretches)};
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

}  // namespace

bool IndexMap::is_identity(int64_t n) const {
  if (size != n) return false;
  int64_t next = 0;
  for (const Stretch& s : stretches) {
    if (s.place != next || s.source != next || (s.step != 1 && s.size > 1)) return false;
    next += s.size;
  }
  return next == n;
}

IndexMap rolled(int64_t n, int64_t shift) {
  if (n == 0) return {};
  shift = (shift % n + n) % n;
  return map_of(n, {{0, shift, n - shift, 1}, {shift, n - shift, 0, 1}});
}

IndexMap flipped(int64_t n) { return map_of(n, {{0, n, n - 1, -1}}); }

IndexMap sliced(int64_t start, int64_t count, int64_t step) { return map_of(count, {{0, count, start, step}}); }

IndexMap padded(int64_t n, int64_t before, int64_t after) {
  const int64_t from = std::max<int64_t>(0, -before), to = n - std::max<int64_t>(0, -after);
  return map_of(n + before + after, {{std::max<int64_t>(0, before), to - from, from, 1}});
}

IndexMap reflected(int64_t n, int64_t before, int64_t after) {
  return map_of(before + n + after, {{0, before, before, -1}, {before, n, 0, 1}, {before + n, after, n - 2, -1}});
}

IndexMap replicated(int64_t n, int64_t before, int64_t after) {
  return map_of(before + n + after, {{0, before, 0, 0}, {before, n, 0, 1}, {before + n, after, n - 1, 0}});
}

IndexMap circular(int64_t n, int64_t before, int64_t after) {
  return map_of(before + n + after, {{0, before, n - before, 1}, {before, n, 0, 1}, {before + n, after, 0, 1}});
}

Segments segments_held(const IndexMap& map, const IndexRanges& held) {
  Segments segments;
  for (size_t s = 0; s < map.stretches.size(); ++s) {
    const Stretch& stretch = map.stretches[s];
    int64_t offset = 0;
    for (const IndexRange& run : held) {
      int64_t first = 0, last = stretch.size - 1;
      const int64_t begin = run.begin - stretch.source, end = run.begin + run.size - 1 - stretch.source;
      if (stretch.step > 0) {
        first = std::max(first, ceil_div(begin, stretch.step));
        last = std::min(last, floor_div(end, stretch.step));
      } else if (stretch.step < 0) {
        first = std::max(first, ceil_div(end, stretch.step));
        last = std::min(last, floor_div(begin, stretch.step));
      } else if (begin > 0 || end < 0) {
        last = -1;
      }
      if (first <= last) {
        segments.push_back({static_cast<int64_t>(s), first, last - first + 1,
                            offset + stretch.source + stretch.step * first - run.begin, stretch.step});
      }
      offset += run.size;
    }
  }
  return segments;
}

Segments segments_wanted(const IndexMap& map, const IndexRanges& wanted) {
  Segments segments;
  int64_t offset = 0;
  for (const IndexRange& run : wanted) {
    for (size_t s = 0; s < map.stretches.size(); ++s) {
      const Stretch& stretch = map.stretches[s];
      const int64_t begin = std::max(run.begin, stretch.place);
      const int64_t end = std::min(run.begin + run.size, stretch.place + stretch.size);
      if (begin < end) {
        segments.push_back(
            {static_cast<int64_t>(s), begin - stretch.place, end - begin, offset + begin - run.begin, 1});
      }
    }
    offset += run.size;
  }
  return segments;
}

}  // namespace dtensor::internal
