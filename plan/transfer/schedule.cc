#include "plan/transfer/schedule.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "comm/communicator_checks.h"
#include "plan/largest_part.h"
#include "plan/transfer/part_index.h"
#include "plan/transfer/transfer.h"

namespace dtensor {
using namespace internal;

namespace {

// A value that is made once, under a mutex, and then read without it.
template <typename T>
class MadeOnce {
 public:
  // Calls make() if there is none yet. `is_kept`: whether a value that was made now is; else the next call makes
  // another.
  template <typename Make>
  std::shared_ptr<const T> get(
      std::mutex& mutex, const Make& make, bool (*is_kept)(const T&) = [](const T&) { return true; }) {
    if (is_made_.load(std::memory_order_acquire)) return value_;
    std::lock_guard<std::mutex> lock(mutex);
    if (value_) return value_;  // another thread was first
    std::shared_ptr<const T> made = make();
    if (!is_kept(*made)) return made;
    value_ = std::move(made);
    is_made_.store(true, std::memory_order_release);
    return value_;
  }

 private:
  std::atomic<bool> is_made_{false};
  std::shared_ptr<const T> value_;  // does not change any more when `is_made_` is set
};

}  // namespace

struct RedistributePlan::Schedule {
  std::mutex mutex;  // for making the others
  MadeOnce<PlanSchedule> schedule;
  MadeOnce<LayoutChange> change;
  MadeOnce<Spec> result;
};

namespace {

using Kind = RedistributeStep::Kind;

// Messages of one plan that are kept: some megabytes. A world caches thousands of plans.
constexpr size_t kMaxMessagesKept = size_t{1} << 14;

// The position of each of `ranks` in `before`; nullopt if the two are the same.
std::optional<std::vector<int64_t>> sources_of(const std::vector<int64_t>& before, const std::vector<int64_t>& ranks) {
  if (before == ranks) return std::nullopt;
  absl::flat_hash_map<int64_t, int64_t> index;
  for (size_t i = 0; i < before.size(); ++i) index[before[i]] = static_cast<int64_t>(i);
  std::vector<int64_t> sources;
  for (int64_t rank : ranks) {
    const auto it = index.find(rank);
    sources.push_back(it == index.end() ? -1 : it->second);
  }
  return sources;
}

std::vector<std::vector<Shape>> sizes_of(const TensorMeta& meta, const Layout& layout,
                                         const std::vector<int64_t>& ranks) {
  std::vector<std::vector<Shape>> sizes;
  if (layout.is_boxes()) {  // boxes have no order: traverse them once
    sizes.resize(ranks.size());
    absl::flat_hash_map<int64_t, size_t> index;
    for (size_t i = 0; i < ranks.size(); ++i) index[ranks[i]] = i;
    for (const RankBox& box : layout.boxes()) {
      if (const auto it = index.find(box.rank); it != index.end()) sizes[it->second].push_back(box.sizes);
    }
    return sizes;
  }
  for (int64_t rank : ranks) {
    auto& list = sizes.emplace_back();
    for (const LocalLayout& part : layout.parts(meta.sizes, rank)) list.push_back(part.sizes());
  }
  return sizes;
}

// All messages between owned ranks and their groups; the members of a group hold, before, disjoint parts of all that
// they need after. Without a group, the elements that every rank keeps.
std::vector<Message> mesh_messages(const TensorMeta& meta, const Layout& before, const Layout& after,
                                   const RankGroups* group) {
  const DeviceMesh& mesh = before.mesh();
  PartsByRank sources(meta, before), targets(meta, after);
  std::vector<std::pair<int64_t, int64_t>> pairs;
  const absl::flat_hash_set<int64_t> owned(mesh.local_ranks().begin(), mesh.local_ranks().end());
  for (int64_t rank : mesh.local_ranks()) {
    pairs.emplace_back(rank, rank);
    if (group == nullptr) continue;
    for (int64_t member : group->members[group->group_of[rank]]) {
      if (member == rank) continue;
      pairs.emplace_back(rank, member);
      if (!owned.contains(member)) pairs.emplace_back(member, rank);
    }
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<Message> messages;
  for (const auto& [sender, receiver] : pairs) {
    for (Block& block : overlap(sources.of(sender)[0], targets.of(receiver)[0]))
      messages.push_back({sender, receiver, 0, 0, std::move(block)});
  }
  return messages;
}

// Round c takes of every block the c-th chunk of its longest dim.
void arrange_in_rounds(std::vector<Message> messages, int64_t chunks, StepSchedule& schedule) {
  if (chunks == 1) {
    schedule.messages = std::move(messages);
    schedule.rounds = {schedule.messages.size()};
    return;
  }
  for (int64_t c = 0; c < chunks; ++c) {
    for (const Message& m : messages) {
      const Shape& sizes = m.block.sizes;
      if (sizes.empty()) {  // one element
        if (c == 0) schedule.messages.push_back(m);
        continue;
      }
      const auto d = static_cast<size_t>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
      const IndexRange piece = chunk(sizes[d], chunks, c);
      if (piece.size == 0) continue;
      Message& part = schedule.messages.emplace_back(m);
      part.block.from[d] += piece.begin;
      part.block.to[d] += piece.begin;
      part.block.sizes[d] = piece.size;
    }
    schedule.rounds.push_back(schedule.messages.size());
  }
}

std::unique_ptr<const RankGroups> group_of_all(const Layout& before, const Layout& after) {
  auto group = std::make_unique<RankGroups>();
  group->name = "transfer";
  std::vector<int64_t> ranks = before.ranks();
  const std::vector<int64_t> more = after.ranks();
  ranks.insert(ranks.end(), more.begin(), more.end());
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  group->size = static_cast<int64_t>(ranks.size());
  group->group_of.assign(before.world().size(), -1);
  group->position_of.assign(before.world().size(), -1);
  for (size_t i = 0; i < ranks.size(); ++i) {
    group->group_of[ranks[i]] = 0;
    group->position_of[ranks[i]] = static_cast<int64_t>(i);
  }
  group->members.push_back(std::move(ranks));
  return group;
}

// `before` and `after` on the meshes of the step's placements.
StepSchedule make_step(const TensorMeta& meta, const RedistributeStep& step, const Layout& before,
                       const Layout& after) {
  StepSchedule schedule;
  std::vector<Message> messages;
  if (step.kind == Kind::kTransfer) {
    schedule.transfer_group = group_of_all(before, after);
    schedule.group = schedule.transfer_group.get();
    for (int64_t rank : before.world().owned_ranks()) {
      if (schedule.group->group_of[rank] >= 0) schedule.ranks.push_back(rank);
    }
    messages = transfer_messages(meta, before, after);
  } else {
    const DeviceMesh& mesh = before.mesh();
    schedule.ranks = mesh.local_ranks();
    if (step.kind != Kind::kSlice) schedule.group = &mesh.group(step.dims);
    if (step.kind != Kind::kFill && step.kind != Kind::kAllReduce)
      messages = mesh_messages(meta, before, after, schedule.group);
  }
  schedule.outputs = sizes_of(meta, after, schedule.ranks);
  schedule.output_bytes = largest_part_bytes(meta, after);
  arrange_in_rounds(std::move(messages), step.chunks, schedule);
  return schedule;
}

std::shared_ptr<const LayoutChange> make_layout_change(const RedistributePlan& plan) {
  const Layout &from = plan.from, &to = plan.to;
  const TensorMeta& tensor = plan.tensor;
  if (!from.is_boxes() && !to.is_boxes() && from.mesh() == to.mesh()) {
    return std::make_shared<const LayoutChange>(tensor.dtype, tensor.sizes, from.placements(), to.placements(),
                                                from.mesh().to_string());
  }
  const auto side = [](const Layout& layout) -> LayoutChange::Side {
    if (layout.is_boxes()) return {std::nullopt, layout.to_string()};
    return {layout.placements(), layout.mesh().to_string()};
  };
  return std::make_shared<const LayoutChange>(tensor.dtype, tensor.sizes, side(from), side(to));
}

// `before`: the sizes of the tensors from which it starts, in the order of the ranks before it.
void check_messages_of(const StepSchedule& s, Collective collective, const SizesOfRanks& before) {
  CommCall call;
  call.group = s.group;
  call.ranks = s.ranks;
  const SizesOfRanks inputs = reordered(before, s.sources);
  for (size_t c = 0; c < s.rounds.size(); ++c) check_messages(collective, call, s.round(c), inputs, s.outputs);
}

PlanSchedule make_schedule(const RedistributePlan& plan) {
  PlanSchedule schedule;
  schedule.ranks = owned_ranks(plan.from);
  schedule.inputs = sizes_of(plan.tensor, plan.from, schedule.ranks);
  schedule.input_bytes = largest_part_bytes(plan.tensor, plan.from);
  const Layout* on = &plan.from;
  const std::vector<int64_t>* ranks = &schedule.ranks;
  const SizesOfRanks* sizes = &schedule.inputs;
  schedule.steps.reserve(plan.steps.size());  // `ranks` and `sizes` point into it
  for (const RedistributeStep& step : plan.steps) {
    const Layout before = on->is_boxes() ? *on : Layout(on->mesh(), step.before);
    if (step.kind == Kind::kTransfer) on = &plan.to;
    const Layout after = on->is_boxes() ? *on : Layout(on->mesh(), step.after);
    StepSchedule& s = schedule.steps.emplace_back(make_step(plan.tensor, step, before, after));
    s.sources = sources_of(*ranks, s.ranks);
    if (!step.is_local()) check_messages_of(s, step.collective(), *sizes);
    ranks = &s.ranks;
    sizes = &s.outputs;
  }
  schedule.result_ranks = owned_ranks(plan.to);
  schedule.result_sources = sources_of(*ranks, schedule.result_ranks);
  return schedule;
}

}  // namespace

namespace internal {

std::shared_ptr<RedistributePlan::Schedule> make_schedule_slot() {
  return std::make_shared<RedistributePlan::Schedule>();
}

const std::vector<int64_t>& owned_ranks(const Layout& layout) {
  return layout.is_boxes() ? layout.world().owned_ranks() : layout.mesh().local_ranks();
}

std::shared_ptr<const PlanSchedule> schedule_of(const RedistributePlan& plan) {
  const auto make = [&] { return std::make_shared<const PlanSchedule>(make_schedule(plan)); };
  if (plan.schedule == nullptr) return make();
  return plan.schedule->schedule.get(plan.schedule->mutex, make, [](const PlanSchedule& made) {
    size_t messages = 0;
    for (const StepSchedule& step : made.steps) messages += step.messages.size();
    return messages <= kMaxMessagesKept;
  });
}

SpecPtr result_spec_of(const RedistributePlan& plan) {
  const auto make = [&] { return Spec::get(plan.to.mesh(), plan.to.placements(), in_own_memory(plan.tensor)); };
  if (!plan.schedule) return make();
  return plan.schedule->result.get(plan.schedule->mutex, make);
}

std::shared_ptr<const LayoutChange> layout_change_of(const RedistributePlan& plan) {
  const auto make = [&] { return make_layout_change(plan); };
  if (!plan.schedule) return make();
  return plan.schedule->change.get(plan.schedule->mutex, make);
}

}  // namespace internal

}  // namespace dtensor
