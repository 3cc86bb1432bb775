#include "ops/network/attention_tiles.h"

#include <algorithm>

namespace dtensor::internal {
namespace {

// Rows and columns in the parts, where the runs begin there.
struct PlacedRun {
  PartRun run;
  int64_t begin;
};

std::vector<PlacedRun> placed(c10::ArrayRef<PartRun> runs, int64_t max_size) {
  std::vector<PlacedRun> result;
  int64_t begin = 0;
  for (const PartRun& run : runs) {
    for (int64_t done = 0; done < run.size; done += max_size) {
      const int64_t size = std::min(max_size, run.size - done);
      result.push_back({{run.index + done, run.position + done, size}, begin + done});
    }
    begin += run.size;
  }
  return result;
}

void add_causal_tiles(const PlacedRun& q, const PlacedRun& k, std::vector<AttentionTile>& tiles) {
  const int64_t q_begin = q.run.position, q_end = q_begin + q.run.size;
  const int64_t k_begin = k.run.position, k_end = k_begin + k.run.size;
  const int64_t first = std::max(q_begin, k_begin), end = std::min(q_end, k_end);  // positions that both have
  if (first < end) {
    const int64_t row = q.begin + first - q_begin, before = first - k_begin;
    if (before > 0) tiles.push_back({row, end - first, k.begin, before, false, k.run.index});
    tiles.push_back({row, end - first, k.begin + before, end - first, true, k.run.index + before});
  }
  const int64_t later = std::max(q_begin, k_end);  // queries after all of these keys
  if (later < q_end) {
    tiles.push_back({q.begin + later - q_begin, q_end - later, k.begin, k.run.size, false, k.run.index});
  }
}

}  // namespace

std::vector<PartRun> part_runs(const IndexRanges& runs, c10::ArrayRef<IndexRange> order) {
  std::vector<PartRun> result;
  const auto add = [&](int64_t index, int64_t position, int64_t size) {
    if (!result.empty()) {
      PartRun& last = result.back();
      if (last.index + last.size == index && last.position + last.size == position) {
        last.size += size;
        return;
      }
    }
    result.push_back({index, position, size});
  };
  for (const IndexRange& run : runs) {
    if (order.empty()) add(run.begin, run.begin, run.size);
    int64_t index = 0;  // where the chunk begins in the whole dim
    for (const IndexRange& chunk : order) {
      const int64_t begin = std::max(index, run.begin), end = std::min(index + chunk.size, run.begin + run.size);
      if (begin < end) add(begin, chunk.begin + begin - index, end - begin);
      index += chunk.size;
    }
  }
  return result;
}

std::vector<AttentionTile> attention_tiles(c10::ArrayRef<PartRun> queries, c10::ArrayRef<PartRun> keys, bool causal,
                                           int64_t max_rows) {
  std::vector<AttentionTile> tiles;
  int64_t rows = 0, columns = 0;
  for (const PartRun& run : queries) rows += run.size;
  for (const PartRun& run : keys) columns += run.size;
  const auto blocks = placed(keys, std::max<int64_t>(columns, 1));
  if (causal) {
    for (const PlacedRun& q : placed(queries, max_rows)) {
      for (const PlacedRun& k : blocks) add_causal_tiles(q, k, tiles);
    }
    return tiles;
  }
  for (int64_t row = 0; row < rows; row += max_rows) {
    const int64_t size = std::min(max_rows, rows - row);
    for (const PlacedRun& k : blocks) tiles.push_back({row, size, k.begin, k.run.size, false, k.run.index});
  }
  return tiles;
}

}  // namespace dtensor::internal
