#include "dtensor/analysis/pipeline_step.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "mesh/world.h"
#include "plan/cost_model.h"

namespace dtensor::internal {
namespace {

int64_t largest_part(int64_t size, int64_t parts) { return (size + parts - 1) / parts; }

// Of the stages of a rank that has the work of one micro-batch.
PipelineTimes times_of_stage(const PipelineSchedule& schedule, double forward, double backward) {
  const auto per_rank = static_cast<double>(schedule.num_stages / schedule.num_ranks);
  const double part = backward / per_rank / 2;
  return {
      .forward = forward / per_rank, .backward = backward / per_rank, .backward_input = part, .backward_weight = part};
}

}  // namespace

StageTransfer stage_transfer(const SearchModuleLayoutsOptions& o, const ModelArrangement& arrangement,
                             const ModuleLayouts& layouts) {
  const bool sharded = absl::c_any_of(layouts.styles.entries, [](const ParallelPlan::Entry& entry) {
    const auto& output = entry.style.layouts.output;
    return output && output->is_sharded_on(1);
  });
  const at::Tensor& whole = o.between_layers;
  std::vector<int64_t> sizes = whole.sizes().vec();
  sizes[0] = largest_part(sizes[0] / arrangement.micro_batches, ranks_of_rows(o, arrangement.mesh));
  if (sizes.size() > 1) sizes[1] = largest_part(sizes[1], context_size(o, arrangement.mesh));
  if (sharded && sizes.size() > 1) sizes[1] = largest_part(sizes[1], arrangement.mesh.size(o.tensor_dim));
  StageTransfer transfer;
  transfer.bytes = static_cast<int64_t>(whole.element_size());
  for (const int64_t size : sizes) transfer.bytes *= size;
  const auto cost = cost_model(arrangement.mesh.world());
  transfer.between_nodes = o.ranks > cost->ranks_per_node;
  transfer.seconds =
      cost->collective(Collective::kPermute, GroupExtent::of_links(2, transfer.between_nodes), transfer.bytes);
  return transfer;
}

void add_waiting(PhasedStep& step, const PipelineSchedule& schedule, const StageTransfer& transfer) {
  PipelineTimes times = times_of_stage(schedule, step.forward_seconds, step.backward_seconds);
  const double work = static_cast<double>(schedule.num_micro_batches) * (step.forward_seconds + step.backward_seconds);
  const double with_bubble = schedule.simulate(times).seconds;
  times.transfer = transfer.seconds;
  const double with_transfers = schedule.simulate(times).seconds;
  step.step.bubble_seconds = std::max(with_bubble - work, 0.);
  // An activation comes to each stage but the first, and a gradient to each but the last.
  const int64_t arrivals = 2 * schedule.num_stages / schedule.num_ranks - (schedule.num_ranks == 2 ? 1 : 0);
  PredictedCollectives row{Collective::kPermute, "pp", transfer.between_nodes};
  row.count = schedule.num_micro_batches * arrivals;
  row.bytes = row.count * transfer.bytes;
  row.seconds = with_transfers - with_bubble;
  StepPrediction transfers;
  transfers.communication.push_back(row);
  add_step(step.step, transfers, 1);
}

PipelineTimeline simulate_stages(const PipelineSchedule& schedule, const StepTimeline& micro_batch,
                                 const StageTransfer& transfer) {
  const double forward = forward_seconds_of(micro_batch);
  PipelineTimes times = times_of_stage(schedule, forward, micro_batch.step.seconds() - forward);
  times.transfer = transfer.seconds;
  return schedule.simulate(times);
}

double least_seconds(const TriedModel& tried, const ModelArrangement& arrangement) {
  const World world = arrangement.mesh.world();
  if (!cost_model(world)->operators.empty()) return 0;
  // Causal attention around a ring has half of the products that attention composed of products has on one rank.
  const double share = context_size(tried.options, arrangement.mesh) > 1 ? 0.5 : 1;
  const double work = share * product_seconds_of(tried, arrangement.layers_of_rank(tried.options.layers)) /
                      static_cast<double>(arrangement.mesh.size());
  if (!arrangement.schedule) return work;
  // Until its first forward and after its last backward, the last pipeline rank waits for one of both in a stage of
  // each other rank. ZB-H1 makes only the longer of forward and half a backward wait: of both at least a third.
  const PipelineSchedule& schedule = *arrangement.schedule;
  const double waits = schedule.name == "ZB-H1" ? 1. / 3 : 1. / static_cast<double>(arrangement.stages_per_rank());
  const double of_one = work / static_cast<double>(arrangement.micro_batches);
  return work + static_cast<double>(schedule.num_ranks - 1) * waits * of_one;
}

}  // namespace dtensor::internal
