#include "dtensor/redistribution/internal/plan_run.h"

#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "comm/block_copy.h"
#include "comm/communicator.h"
#include "comm/empty_part.h"
#include "comm/scope.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using Kind = RedistributeStep::Kind;

at::IntArrayRef ref(const Shape& shape) { return {shape.data(), shape.size()}; }

void check_pieces(const RedistributePlan& plan, const PlanSchedule& schedule, const RankPieces& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto& expected = schedule.inputs[i];
    bool same = pieces[i].size() == expected.size();
    for (size_t k = 0; same && k < expected.size(); ++k) {
      const at::Tensor& t = pieces[i][k];
      same = t.defined() && t.sizes() == ref(expected[k]) && t.scalar_type() == plan.tensor.dtype;
    }
    if (same) continue;
    std::vector<std::string> got, wanted;
    for (const at::Tensor& t : pieces[i]) {
      got.push_back(t.defined() ? c10::str(short_name(t.scalar_type()), t.sizes()) : std::string("undefined"));
    }
    for (const Shape& sizes : expected) wanted.push_back(c10::str(short_name(plan.tensor.dtype), ref(sizes)));
    TORCH_CHECK_VALUE(false, "[redistribute] rank ", schedule.ranks[i], " passes {", c10::Join(", ", got), "}, but ",
                      plan.from.to_string(), " of ", to_string(plan.tensor), " puts {", c10::Join(", ", wanted),
                      "} there");
  }
}

void fill(const StepSchedule& s, ReduceOp op, const RankPieces& inputs, const RankPieces& outputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool first = s.group->position_of[s.ranks[i]] == 0;
    const at::Tensor& out = outputs[i][0];
    if (!first && (op == ReduceOp::kSum || op == ReduceOp::kNorm2)) {
      out.zero_();
    } else if (!first && op == ReduceOp::kProduct) {
      out.fill_(1);
    } else {
      out.copy_(inputs[i][0]);
    }
  }
}

// Concatenates each rank's pieces of all `parts`.
RankPieces joined(absl::Span<const RankPieces* const> parts) {
  RankPieces all(parts[0]->size());
  for (const RankPieces* part : parts) {
    for (size_t i = 0; i < all.size(); ++i) all[i].insert(all[i].end(), (*part)[i].begin(), (*part)[i].end());
  }
  return all;
}

}  // namespace

PlanRun::PlanRun(const RedistributePlan& plan, RankPieces pieces)
    : plan_(&plan), schedule_(schedule_of(plan)), pieces_(std::move(pieces)) {
  check_pieces(plan, *schedule_, pieces_);
}

void PlanRun::prepare() { pieces_ = reordered(std::move(pieces_), scheduled().sources); }

RankPieces PlanRun::take_result() { return reordered(std::move(pieces_), schedule_->result_sources); }

RankPieces PlanRun::reserve_result() {
  reserved_ = new_outputs(plan_->steps.size() - 1);
  return reordered(reserved_, schedule_->result_sources);
}

RankPieces PlanRun::new_outputs(size_t step) const {
  const StepSchedule& s = schedule_->steps[step];
  RankPieces outputs(s.ranks.size());
  // Reductions are faster into row-major memory.
  const bool row_major = plan_->steps[step].kind == Kind::kReduceScatter || is_row_major(plan_->tensor);
  const Shape whole = row_major ? Shape() : in_own_memory(plan_->tensor).strides;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const c10::Device device = plan_->from.world().device(s.ranks[i]);
    outputs[i].reserve(s.outputs[i].size());
    for (const Shape& sizes : s.outputs[i]) {
      outputs[i].push_back(row_major
                               ? empty_part(ref(sizes), plan_->tensor.dtype, device)
                               : empty_part(ref(sizes), dense_in_order_of(whole, sizes), plan_->tensor.dtype, device));
    }
  }
  return outputs;
}

void PlanRun::run_local() {
  prepare();
  const StepSchedule& s = scheduled();
  const bool is_last = next_ + 1 == plan_->steps.size();
  RankPieces outputs = is_last && !reserved_.empty() ? std::move(reserved_) : new_outputs(next_);
  if (step().kind == Kind::kFill) {
    fill(s, step().op, pieces_, outputs);
  } else {
    const RankSlots slots(s.ranks, plan_->from.world().size());
    for (const Message& m : s.messages) {
      const int64_t i = slots[m.sender];  // the receiver, too
      copy_block(pieces_[i][m.input], outputs[i][m.output], m.block);
    }
  }
  finish(std::move(outputs));
}

namespace {

void check_alike(const PlanRun& a, const PlanRun& b) {
  const StepSchedule &s = a.scheduled(), &t = b.scheduled();
  const bool one_group =
      s.group == t.group || (s.transfer_group && t.transfer_group && s.group->members == t.group->members);
  TORCH_INTERNAL_ASSERT(
      one_group && s.ranks == t.ranks && s.rounds.size() == t.rounds.size() && a.step().op == b.step().op, "steps of ",
      a.plan().to_string(), " and ", b.plan().to_string(), " cannot be one collective");
}

// The messages of one round of all runs: a rank's single tensor in the k-th run is its k-th tensor in the joined call.
std::vector<Message> joined_messages(absl::Span<PlanRun* const> runs, size_t c) {
  std::vector<Message> all;
  for (size_t k = 0; k < runs.size(); ++k) {
    for (const Message& m : runs[k]->scheduled().round(c)) {
      Message& message = all.emplace_back(m);
      message.input = message.output = static_cast<int64_t>(k);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver, a.input) < std::tie(b.sender, b.receiver, b.input);
  });
  return all;
}

Communicator& communicator_of(const PlanRun& run) { return run.plan().from.world().communicator(); }

// The runs' next steps combined.
struct JoinedStep {
  Collective collective;  // all_to_all if they differ
  int64_t bytes = 0;
};

// One for each run, of which there usually is one.
using PiecesOfRuns = absl::InlinedVector<RankPieces, 1>;
using PointersToPieces = absl::InlinedVector<const RankPieces*, 1>;

// The tensors of one collective for several runs, or of a single run, which must outlive this.
class Joined {
 public:
  explicit Joined(absl::Span<const RankPieces* const> parts) : first_(*parts[0]) {
    if (parts.size() > 1) all_ = joined(parts);
  }
  const RankPieces& operator*() const { return all_.empty() ? first_ : all_; }

 private:
  const RankPieces& first_;
  RankPieces all_;
};

// Backends do not have norms: squares are added up, each with its number's sign.
ReduceOp op_of_backend(ReduceOp op) { return op == ReduceOp::kNorm2 ? ReduceOp::kSum : op; }

// What a backend adds up for `op`: the inputs, or their squares, which are stored in `squares`.
const RankPieces& addends(const RankPieces& inputs, ReduceOp op, RankPieces& squares) {
  if (op != ReduceOp::kNorm2) return inputs;
  squares = inputs;
  for (auto& of_rank : squares) {
    for (at::Tensor& t : of_rank) t = t * t.abs();
  }
  return squares;
}

void take_roots(RankPieces& sums) {
  for (auto& of_rank : sums) {
    for (at::Tensor& t : of_rank) t.copy_(t.sgn() * t.abs().sqrt());
  }
}

// The result of each run.
PiecesOfRuns all_reduce(absl::Span<PlanRun* const> runs, const CommCall& call, const RankPieces& inputs) {
  const ReduceOp op = runs[0]->step().op;
  RankPieces squares;
  RankPieces sums = communicator_of(*runs[0]).all_reduce_many(call, addends(inputs, op, squares), op_of_backend(op));
  if (op == ReduceOp::kNorm2) take_roots(sums);
  PiecesOfRuns outputs(runs.size());
  if (runs.size() == 1) {
    outputs[0] = std::move(sums);
    return outputs;
  }
  for (size_t k = 0; k < runs.size(); ++k) {
    for (auto& of_rank : sums) outputs[k].push_back({std::move(of_rank[k])});
  }
  return outputs;
}

// A step that moves blocks, in its rounds.
void exchange(absl::Span<PlanRun* const> runs, CommCall& call, const JoinedStep& step, const RankPieces& inputs,
              PiecesOfRuns& outputs, std::shared_ptr<CommWork>* work) {
  PointersToPieces parts;
  for (const RankPieces& of_job : outputs) parts.push_back(&of_job);
  const Joined all_outputs(parts);
  const bool reduces = runs[0]->step().kind == Kind::kReduceScatter;
  const ReduceOp op = runs[0]->step().op;
  RankPieces squares;
  const RankPieces& sent = reduces ? addends(inputs, op, squares) : inputs;
  const StepSchedule& s = runs[0]->scheduled();
  const auto rounds = static_cast<int64_t>(s.rounds.size());
  if (rounds == 1) call.work = work;
  call.are_messages_checked = runs.size() == 1;
  for (int64_t c = 0; c < rounds; ++c) {
    const std::vector<Message> of_all = runs.size() == 1 ? std::vector<Message>() : joined_messages(runs, c);
    const absl::Span<const Message> messages = runs.size() == 1 ? s.round(c) : of_all;
    call.event.bytes = step.bytes * (c + 1) / rounds - step.bytes * c / rounds;
    if (reduces) {
      communicator_of(*runs[0]).reduce_scatter(call, messages, sent, *all_outputs, op_of_backend(op));
    } else {
      communicator_of(*runs[0]).exchange(call, step.collective, messages, sent, *all_outputs);
    }
  }
  if (reduces && op == ReduceOp::kNorm2) {
    for (RankPieces& of_run : outputs) take_roots(of_run);
  }
}

}  // namespace

void run_collective(absl::Span<PlanRun* const> runs, const CommCause& cause, std::shared_ptr<CommWork>* work) {
  const PlanRun& first = *runs[0];
  JoinedStep joined_step{first.step().collective()};
  PointersToPieces inputs;
  for (PlanRun* run : runs) {
    check_alike(first, *run);
    run->prepare();
    joined_step.bytes += run->step().bytes;
    if (run->step().collective() != joined_step.collective) joined_step.collective = Collective::kAllToAll;
    inputs.push_back(&run->pieces_);
  }
  CommCall call;
  call.group = first.scheduled().group;
  call.ranks = first.scheduled().ranks;
  call.event.cause = cause;
  call.event.bytes = joined_step.bytes;
  call.event.dtype = first.plan().tensor.dtype;
  const bool is_read = first.plan().from.world().has_data() || has_listeners();
  if (is_read) call.event.layout_change = layout_change_of(first.plan());
  call.event.more_tensors = static_cast<int>(runs.size()) - 1;
  PiecesOfRuns outputs;
  const bool takes_roots = first.step().op == ReduceOp::kNorm2;  // on received data
  if (takes_roots) work = nullptr;
  if (first.step().kind == Kind::kAllReduce) {
    call.work = work;
    outputs = all_reduce(runs, call, *Joined(inputs));
  } else {
    for (PlanRun* run : runs) outputs.push_back(run->new_outputs(run->next()));
    exchange(runs, call, joined_step, *Joined(inputs), outputs, work);
  }
  for (size_t k = 0; k < runs.size(); ++k) runs[k]->finish(std::move(outputs[k]));
}

}  // namespace dtensor::internal
