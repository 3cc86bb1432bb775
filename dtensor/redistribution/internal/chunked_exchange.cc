#include "dtensor/redistribution/internal/chunked_exchange.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/forbid_whole_gather.h"
#include "mesh/memory_meter.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

using Kind = RedistributeStep::Kind;

RankPieces one_each(const RankTensors& tensors) {
  RankPieces pieces;
  for (const at::Tensor& t : tensors) pieces.push_back({t});
  return pieces;
}

}  // namespace

std::optional<ChunkCut> cut_into_chunks(const RedistributePlan& plan, int64_t max_chunks) {
  if (plan.steps.size() != 1 || plan.from.is_boxes() || plan.to.is_boxes()) return std::nullopt;
  const RedistributeStep& step = plan.steps[0];
  const bool scatters = step.kind == Kind::kReduceScatter && step.op == ReduceOp::kSum;
  if ((step.kind != Kind::kAllGather && !scatters) || step.dims.size() != 1 || step.chunks != 1) return std::nullopt;
  const Placements& cut = scatters ? step.after : step.before;
  const Placement& moved = cut[step.dims[0]];
  const auto last = static_cast<int64_t>(plan.tensor.sizes.size()) - 1;
  if (!moved.is_shard() || moved.dim() >= last) return std::nullopt;
  const Shape rows = largest_part(plan.tensor.sizes, plan.from.mesh().shape(), cut);
  int64_t dim = 0;
  while (dim < last && rows[dim] < max_chunks) ++dim;
  if (dim == last) dim = moved.dim();
  const int64_t chunks = std::min(max_chunks, rows[dim]);
  if (chunks < 2) return std::nullopt;
  return ChunkCut{dim, chunks};
}

ChunkedExchange::ChunkedExchange(std::shared_ptr<const RedistributePlan> plan, ChunkCut cut, RankTensors inputs,
                                 CommCause cause)
    : plan_(std::move(plan)),
      schedule_(schedule_of(*plan_)),
      cut_(cut),
      cause_(std::move(cause)),
      inputs_(std::move(inputs)),
      works_(cut.chunks) {
  TORCH_INTERNAL_ASSERT(!step().sources && !schedule_->result_sources && inputs_.size() == step().ranks.size());
  ForbidWholeGather::check(*plan_, cause_);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const Shape& sizes = step().outputs[i][0];
    outputs_.push_back(at::empty({sizes.data(), sizes.size()}, inputs_[i].options()));
  }
  blocks_.resize(inputs_.size());
  const RankSlots slots(step().ranks, plan_->from.world().size());
  for (const Message& m : step().messages) {
    const int64_t i = slots[gathers() ? m.receiver : m.sender];
    if (i < 0) continue;
    const IndexRange block{(gathers() ? m.block.to : m.block.from)[cut_.dim], m.block.sizes[cut_.dim]};
    // Of another dim than the one that is exchanged, all messages have the same rows.
    if (blocks_[i].empty() || !(blocks_[i].back() == block)) blocks_[i].push_back(block);
  }
  plan_->from.world().memory().touch(plan_->steps[0].peak_bytes - schedule_->input_bytes);
}

IndexRange ChunkedExchange::piece(int64_t size, int64_t k) const {
  const int64_t begin = size * k / cut_.chunks;
  return {begin, size * (k + 1) / cut_.chunks - begin};
}

std::vector<IndexRange> ChunkedExchange::rows(size_t i, int64_t k) const {
  std::vector<IndexRange> runs;
  for (const IndexRange& block : blocks_[i]) {
    const IndexRange part = piece(block.size, k);
    if (part.size > 0) runs.push_back({block.begin + part.begin, part.size});
  }
  return runs;
}

void ChunkedExchange::begin(int64_t k) {
  std::vector<Message> messages;
  for (const Message& m : step().messages) {
    const IndexRange run = piece(m.block.sizes[cut_.dim], k);
    if (run.size == 0) continue;
    Message& part = messages.emplace_back(m);
    part.block.from[cut_.dim] += run.begin;
    part.block.to[cut_.dim] += run.begin;
    part.block.sizes[cut_.dim] = run.size;
  }
  const World& world = plan_->from.world();
  const int64_t bytes = plan_->steps[0].bytes;
  CommCall call;
  call.group = step().group;
  call.ranks = step().ranks;
  call.event.cause = cause_;
  call.event.bytes = bytes * (k + 1) / cut_.chunks - bytes * k / cut_.chunks;
  call.event.dtype = plan_->tensor.dtype;
  if (world.has_data() || has_listeners()) call.event.layout_change = layout_change_of(*plan_);
  call.work = &works_[k];
  if (gathers()) {
    world.communicator().exchange(call, Collective::kAllGather, messages, one_each(inputs_), one_each(outputs_));
  } else {
    world.communicator().reduce_scatter(call, messages, one_each(inputs_), one_each(outputs_), ReduceOp::kSum);
  }
}

void ChunkedExchange::wait(int64_t k) const {
  if (works_[k] != nullptr) works_[k]->wait();
}

}  // namespace dtensor::internal
