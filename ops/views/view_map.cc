#include "ops/views/view_map.h"

#include <algorithm>

#include "placement/with_dim.h"

namespace dtensor::internal {
namespace {

// Parts with more runs are not compared and count as different, which may cost a redistribution but is never wrong.
constexpr size_t kMaxRuns = size_t{1} << 20;

void append(IndexRanges& runs, const IndexRange& run) {
  if (!runs.empty() && runs.back().begin + runs.back().size == run.begin) {
    runs.back().size += run.size;
  } else {
    runs.push_back(run);
  }
}

bool any_empty(const std::vector<IndexRanges>& dims) {
  return std::any_of(dims.begin(), dims.end(), [](const IndexRanges& runs) { return runs.empty(); });
}

// The flat indices of a product of index sets within a tensor of `sizes`, ascending. nullopt: too many runs.
std::optional<IndexRanges> flatten(const std::vector<IndexRanges>& dims, const std::vector<int64_t>& sizes) {
  if (any_empty(dims)) return IndexRanges{};
  IndexRanges flat = {{0, 1}};
  int64_t stride = 1;  // elements of one index of the current dim
  for (size_t d = dims.size(); d-- > 0;) {
    IndexRanges longer;
    const bool whole = flat.size() == 1 && flat[0].size == stride;
    for (const IndexRange& run : dims[d]) {
      if (whole) {
        append(longer, {run.begin * stride, run.size * stride});
        continue;
      }
      if (longer.size() + flat.size() * run.size > kMaxRuns) return std::nullopt;
      for (int64_t i = run.begin; i < run.begin + run.size; ++i) {
        for (const IndexRange& inner : flat) append(longer, {i * stride + inner.begin, inner.size});
      }
    }
    flat = std::move(longer);
    stride *= sizes[d];
  }
  return flat;
}

// Moves every set to start at 0. How later placements cut a part does not depend on its offset.
void shift_to_origin(std::vector<IndexRanges>& dims) {
  for (IndexRanges& runs : dims) {
    const int64_t begin = runs.front().begin;
    for (IndexRange& run : runs) run.begin -= begin;
  }
}

int64_t leading_size(const std::vector<IndexRanges>& dims, size_t end) {
  int64_t size = 1;
  for (size_t d = 0; d < end; ++d) size *= total_size(dims[d]);
  return size;
}

}  // namespace

std::vector<DimGroup> group_dims(absl::Span<const int64_t> in, absl::Span<const int64_t> out) {
  std::vector<DimGroup> groups;
  size_t i = 0, o = 0;
  while (i < in.size() && o < out.size()) {
    DimGroup group{static_cast<int64_t>(i), 0, static_cast<int64_t>(o), 0};
    int64_t in_product = in[i++], out_product = out[o++];
    while (in_product != out_product) {
      if (in_product < out_product) {
        in_product *= in[i++];
      } else {
        out_product *= out[o++];
      }
    }
    group.in_end = i;
    group.out_end = o;
    groups.push_back(group);
  }
  if (i < in.size() || o < out.size()) {
    groups.push_back({static_cast<int64_t>(i), static_cast<int64_t>(in.size()), static_cast<int64_t>(o),
                      static_cast<int64_t>(out.size())});
  }
  return groups;
}

ViewMap::ViewMap(absl::Span<const int64_t> in, absl::Span<const int64_t> out) {
  empty_ = std::find(in.begin(), in.end(), 0) != in.end();
  if (empty_) return;
  for (const DimGroup& dims : group_dims(in, out)) {
    Group group;
    group.dims = dims;
    Part whole;
    for (int64_t d = dims.in_begin; d < dims.in_end; ++d) {
      group.in_sizes.push_back(in[d]);
      whole.in.push_back({{0, in[d]}});
    }
    for (int64_t d = dims.out_begin; d < dims.out_end; ++d) {
      group.out_sizes.push_back(out[d]);
      whole.out.push_back({{0, out[d]}});
    }
    group.parts.push_back(std::move(whole));
    groups_.push_back(std::move(group));
  }
}

std::optional<Placement> ViewMap::follow(const Placement& placement, int64_t n) {
  if (placement.is_partial()) return Partial(placement.reduce_op());
  // If there are no elements, every rank has all.
  if (placement.is_replicate() || empty_) return Replicate();
  for (Group& group : groups_) {
    if (group.dims.in_begin <= placement.dim() && placement.dim() < group.dims.in_end)
      return follow(group, placement, n);
  }
  return std::nullopt;
}

std::optional<Placement> ViewMap::follow(Group& group, const Placement& placement, int64_t n) {
  const DimGroup& dims = group.dims;
  const int64_t in_dim = placement.dim() - dims.in_begin;
  if (dims.in_end - dims.in_begin == 1 && dims.out_end - dims.out_begin == 1)
    return with_dim(placement, dims.out_begin);
  if (n == 1 && dims.out_begin == dims.out_end) return Replicate();
  if (group.parts.empty()) return Replicate();  // impossible: rank 0 has part of everything

  // The input is cut into nested pieces: one cut for each index of the dims before, times the split factor. The output
  // must be cut as often.
  const Part& sample = group.parts.front();
  const int64_t pieces =
      leading_size(sample.in, in_dim) * (placement.is_strided_shard() ? placement.split_factor() : 1);
  std::vector<Placement> candidates;
  for (int64_t o = 0; o < dims.out_end - dims.out_begin; ++o) {
    const int64_t leading = leading_size(sample.out, o);
    if (pieces % leading != 0) break;
    const Placement candidate =
        pieces == leading ? Shard(dims.out_begin + o) : StridedShard(dims.out_begin + o, pieces / leading);
    candidates.insert(candidate.is_shard() ? candidates.begin() : candidates.end(), candidate);
  }
  for (const Placement& candidate : candidates) {
    if (cut(group, in_dim, placement, candidate.dim() - dims.out_begin, candidate, n)) return candidate;
  }
  return n == 1 ? std::optional(Replicate()) : std::nullopt;
}

bool ViewMap::cut(Group& group, int64_t in_dim, const Placement& in, int64_t out_dim, const Placement& out, int64_t n) {
  std::vector<Part> parts;
  for (const Part& part : group.parts) {
    for (int64_t i = 0; i < n; ++i) {
      Part mine = part;
      mine.in[in_dim] = shard_runs(part.in[in_dim], in, n, i);
      mine.out[out_dim] = shard_runs(part.out[out_dim], out, n, i);
      const std::optional<IndexRanges> held = flatten(mine.in, group.in_sizes);
      if (!held || held != flatten(mine.out, group.out_sizes)) return false;
      if (held->empty()) continue;
      shift_to_origin(mine.in);
      shift_to_origin(mine.out);
      auto same = [&](const Part& other) { return other.in == mine.in && other.out == mine.out; };
      if (std::none_of(parts.begin(), parts.end(), same)) parts.push_back(std::move(mine));
    }
  }
  group.parts = std::move(parts);
  return true;
}

}  // namespace dtensor::internal
