#include "plan/search/mesh_steps.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "plan/search/step_search.h"

namespace dtensor::internal {

Placements relabelled(const DeviceMesh& mesh, Placements from, const Placements& to) {
  for (size_t m = 0; m < from.size(); ++m) {
    const bool valid_addends = from[m].is_mask_partial() && to[m] == Partial(from[m].reduce_op());
    if (mesh.shape()[m] == 1 || valid_addends) from[m] = to[m];
  }
  return from;
}

namespace {

// `refused`: as StepSearch::least_refused().
bool find_steps(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& start, const Placements& to,
                const CostModel& cost, const Limits& limits, bool complete, std::vector<RedistributeStep>& steps,
                int64_t& refused) {
  Placements middle = start;
  int64_t changing = 0;
  for (size_t m = 0; m < to.size(); ++m) {
    if (start[m] == to[m] || ++changing > kMaxChanging) continue;
    middle[m] = to[m].is_partial() ? Replicate() : to[m];
  }
  if (changing <= kMaxChanging) {
    StepSearch search(mesh, meta, start, to, cost, limits, /*helpers=*/true, complete);
    const bool found = search.run(steps);
    if (!found) refused = search.least_refused();
    return found;
  }
  if (middle == start) {  // only fills remain, of so many dims that they are done one kind at a time
    for (size_t m = 0, filled = 0; m < to.size() && filled < kMaxChanging; ++m) {
      if (start[m] != to[m]) middle[m] = to[m], ++filled;
    }
  }
  // More mesh dims than a search can encode: changes some of them first.
  std::vector<RedistributeStep> rest;
  if (!find_steps(mesh, meta, start, middle, cost, limits, complete, steps, refused) ||
      !find_steps(mesh, meta, middle, to, cost, limits, complete, rest, refused)) {
    return false;
  }
  steps.insert(steps.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return true;
}

}  // namespace

double least_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost) {
  const Placements start = relabelled(mesh, from, to);
  if (start == to || meta.numel() == 0) return 0;
  const LayoutGeometry geometry(mesh.shape(), meta);
  const Placement replicate;
  const PlacementPointers before = placement_pointers(start);
  PlacementPointers after = placement_pointers(to);
  double reducing = 1, least_part = static_cast<double>(meta.bytes()), average = least_part;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto n = static_cast<double>(mesh.size(m));
    if (start[m] != to[m] && start[m].is_partial()) reducing *= n;
    if (start[m] != to[m] && to[m].is_partial()) after[m] = &replicate;  // filled last
    if (after[m]->is_sharded()) average /= n;
    if (!after[m]->is_partial()) least_part /= n;
  }
  const auto irregular = [&](int64_t size) { return size % mesh.size() != 0; };
  const bool visits = std::any_of(meta.sizes.begin(), meta.sizes.end(), irregular);
  int64_t bytes = reducing > 1 || visits ? geometry.part_bytes(after) - geometry.part_bytes(before)
                                         : geometry.received_bytes(before, after);
  if (reducing == 1) return bytes > 0 ? cost.least(bytes) : 0;
  bytes = std::max(bytes, static_cast<int64_t>(least_part * (reducing - 2) + average - kRounding));  // as remaining()
  return cost.least(std::max<int64_t>(0, bytes));
}

double plain_seconds(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost) {
  const Placements start = relabelled(mesh, from, to);
  if (start == to || meta.numel() == 0) return 0;
  int64_t changing = 0;
  for (size_t m = 0; m < start.size(); ++m) changing += start[m] != to[m] ? 1 : 0;
  const Limits none;
  if (changing > kMaxChanging) return least_seconds(mesh, meta, from, to, cost);
  return static_cast<double>(StepSearch(mesh, meta, start, to, cost, none, /*helpers=*/false).plain_length()) * 1e-12;
}

bool find_mesh_steps(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                     const CostModel& cost, const Limits& limits, std::vector<RedistributeStep>& steps, bool complete) {
  steps.clear();
  const Placements start = relabelled(mesh, from, to);
  if (start == to) return true;
  if (meta.numel() > 0) {
    int64_t refused = 0;
    return find_steps(mesh, meta, start, to, cost, limits, complete, steps, refused);
  }
  RedistributeStep& step = steps.emplace_back();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (start[m] != to[m]) step.dims.push_back(m);
  }
  step.before = start;
  step.after = to;
  return true;
}

int64_t least_mesh_peak(const DeviceMesh& mesh, const TensorMeta& meta, const Placements& from, const Placements& to,
                        const CostModel& cost, int64_t fails) {
  const Placements start = relabelled(mesh, from, to);
  std::vector<RedistributeStep> steps;
  int64_t works = std::numeric_limits<int64_t>::max();
  fails = std::max<int64_t>(0, fails);
  for (Limits limits; works - fails > 1; limits.max_bytes = fails + (works - fails) / 2) {
    int64_t refused = 0;
    if (find_steps(mesh, meta, start, to, cost, limits, /*complete=*/false, steps, refused)) {
      works = 0;
      for (const RedistributeStep& step : steps) works = std::max(works, step.peak_bytes);
    } else {
      fails = std::max(limits.max_bytes, std::min(refused, works) - 1);
    }
  }
  return works;
}

}  // namespace dtensor::internal
