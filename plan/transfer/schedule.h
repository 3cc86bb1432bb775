// The blocks that the steps of a plan move, for the ranks that this process owns: computed at the plan's first run, so
// that later runs need no geometry.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "comm/comm_call.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {

struct StepSchedule {
  // The owned ranks that take part, in the order of their tensors.
  std::vector<int64_t> ranks;
  // For each of them, the previous position of its tensors, -1 for a rank that had none. nullopt: in the same order.
  std::optional<std::vector<int64_t>> sources;
  std::vector<std::vector<Shape>> outputs;  // per rank, the sizes of its tensors after the step
  // Empty for kFill and kAllReduce. Round by round: round c ends at rounds[c]. Those of a collective passed
  // check_messages().
  std::vector<Message> messages;
  std::vector<size_t> rounds;
  absl::Span<const Message> round(size_t c) const {
    const size_t begin = c == 0 ? 0 : rounds[c - 1];
    return absl::MakeConstSpan(messages).subspan(begin, rounds[c] - begin);
  }
  const RankGroups* group = nullptr;  // valid as long as the plan; null for kSlice
  std::unique_ptr<const RankGroups> transfer_group;
  int64_t output_bytes = 0;  // of the largest part on any rank after the step
};

// What each rank has, in the order of StepSchedule::sources; nothing for a rank that had none.
template <typename T>
std::vector<T> reordered(std::vector<T> of_ranks, const std::optional<std::vector<int64_t>>& sources) {
  if (!sources) return of_ranks;
  std::vector<T> out;
  for (const int64_t source : *sources) out.push_back(source < 0 ? T() : std::move(of_ranks[source]));
  return out;
}

struct PlanSchedule {
  std::vector<StepSchedule> steps;
  std::vector<int64_t> ranks;                          // of the source
  std::vector<std::vector<Shape>> inputs;              // per rank, sizes of the source tensors
  std::vector<int64_t> result_ranks;                   // of the result
  std::optional<std::vector<int64_t>> result_sources;  // as StepSchedule::sources
  int64_t input_bytes = 0;                             // of the largest source part
};

// The owned ranks of a layout, in the order of their tensors: mesh.local_ranks(); of boxes, all that the process owns.
const std::vector<int64_t>& owned_ranks(const Layout& layout);

// Without a schedule yet: RedistributePlan::schedule of a new plan.
std::shared_ptr<RedistributePlan::Schedule> make_schedule_slot();

// Cached with the plan, unless it is very long. Thread-safe.
std::shared_ptr<const PlanSchedule> schedule_of(const RedistributePlan& plan);

// The spec of the tensor that the plan makes, in memory of its own. Kept with the plan, so that a tensor that is the
// only one of its layout gets the same spec each time. REQUIRES: !plan.to.is_boxes(). Thread-safe.
SpecPtr result_spec_of(const RedistributePlan& plan);

// For CommEvent::layout_change of the whole plan. Made on first use, and cached with the plan. Thread-safe.
std::shared_ptr<const LayoutChange> layout_change_of(const RedistributePlan& plan);

}  // namespace dtensor::internal
