// validate_non_overlapping(): whether boxes are disjoint, without comparing all pairs.
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "plan/transfer/part_index.h"
#include "sharded/enumerable_sharding_spec.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using Pair = std::pair<size_t, size_t>;  // of shards, the first one first
using Found = std::optional<Pair>;

Pair ordered(size_t a, size_t b) { return {std::min(a, b), std::max(a, b)}; }

int64_t begin_of(const ShardMetadata& shard, size_t d) { return shard.shard_offsets[d]; }
// Saturates: such a shard exceeds its tensor, which check_tensor() reports.
int64_t end_of(const ShardMetadata& shard, size_t d) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  return shard.shard_sizes[d] > most - shard.shard_offsets[d] ? most : shard.shard_offsets[d] + shard.shard_sizes[d];
}

// Along one dim only neighbours can overlap first.
Found on_a_line(const std::vector<ShardMetadata>& shards, std::vector<size_t> live, size_t d) {
  std::stable_sort(live.begin(), live.end(),
                   [&](size_t a, size_t b) { return begin_of(shards[a], d) < begin_of(shards[b], d); });
  for (size_t i = 1; i < live.size(); ++i) {
    if (end_of(shards[live[i - 1]], d) > begin_of(shards[live[i]], d)) return ordered(live[i - 1], live[i]);
  }
  return std::nullopt;
}

// A sweep line along dim `d`; the shards that it intersects are disjoint intervals of dim `e`, so each new one is
// compared with its two neighbours there.
Found in_a_plane(const std::vector<ShardMetadata>& shards, const std::vector<size_t>& live, size_t d, size_t e) {
  std::vector<std::tuple<int64_t, bool, size_t>> events;  // where, begins, shard; at one place ends come first
  for (size_t s : live) {
    events.emplace_back(begin_of(shards[s], d), true, s);
    events.emplace_back(end_of(shards[s], d), false, s);
  }
  std::sort(events.begin(), events.end());
  std::map<int64_t, size_t> cut;  // begin along e -> shard
  for (const auto& [where, begins, s] : events) {
    if (!begins) {
      cut.erase(begin_of(shards[s], e));
      continue;
    }
    const auto [at, is_new] = cut.emplace(begin_of(shards[s], e), s);
    if (!is_new) return ordered(at->second, s);
    if (at != cut.begin() && end_of(shards[std::prev(at)->second], e) > begin_of(shards[s], e))
      return ordered(std::prev(at)->second, s);
    if (std::next(at) != cut.end() && end_of(shards[s], e) > begin_of(shards[std::next(at)->second], e))
      return ordered(std::next(at)->second, s);
  }
  return std::nullopt;
}

// A tree of boxes around boxes.
Found in_space(const std::vector<ShardMetadata>& shards, const std::vector<size_t>& live,
               const std::vector<size_t>& dims) {
  std::vector<LocalLayout> parts(live.size());
  std::vector<PartIndex::Entry> entries;
  for (size_t i = 0; i < live.size(); ++i) {
    for (size_t d : dims) {
      const int64_t begin = begin_of(shards[live[i]], d);
      parts[i].dims.push_back(IndexRanges{{begin, end_of(shards[live[i]], d) - begin}});
    }
    entries.push_back({0, static_cast<int64_t>(i), &parts[i]});
  }
  const PartIndex index(std::move(entries));
  Found found;
  for (size_t i = 0; i < live.size() && !found; ++i) {
    index.meet(parts[i], [&](const PartIndex::Entry& other) {
      if (other.number != static_cast<int64_t>(i)) found = ordered(live[i], live[other.number]);
      return !found;
    });
  }
  return found;
}

Found find_overlap(const std::vector<ShardMetadata>& shards) {
  std::vector<size_t> live;
  for (size_t s = 0; s < shards.size(); ++s) {
    if (!shards[s].empty()) live.push_back(s);
  }
  if (live.size() < 2) return std::nullopt;
  const ShardMetadata& first = shards[live[0]];
  std::vector<size_t> dims;  // where not all are alike
  for (size_t d = 0; d < first.shard_offsets.size(); ++d) {
    const bool alike = std::all_of(live.begin(), live.end(), [&](size_t s) {
      return shards[s].shard_offsets[d] == first.shard_offsets[d] && shards[s].shard_sizes[d] == first.shard_sizes[d];
    });
    if (!alike) dims.push_back(d);
  }
  if (dims.empty()) return Pair(live[0], live[1]);
  if (dims.size() == 1) return on_a_line(shards, std::move(live), dims[0]);
  if (dims.size() == 2) return in_a_plane(shards, live, dims[0], dims[1]);
  return in_space(shards, live, dims);
}

}  // namespace

void validate_non_overlapping(const std::vector<ShardMetadata>& shards) {
  for (const ShardMetadata& shard : shards) {
    TORCH_CHECK_VALUE(shard.shard_offsets.size() == shards[0].shard_offsets.size() &&
                          shard.shard_sizes.size() == shard.shard_offsets.size(),
                      "Found inconsistent ranks for shards: ", shards[0].shard_offsets.size(), " and ",
                      shard.shard_offsets.size());
  }
  if (const Found found = find_overlap(shards))
    TORCH_CHECK_VALUE(false, "Shards ", shards[found->first], " and ", shards[found->second], " overlap");
}

}  // namespace dtensor::sharded
