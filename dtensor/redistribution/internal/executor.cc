#include "dtensor/redistribution/internal/executor.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/comm_work.h"
#include "dtensor/forbid_whole_gather.h"
#include "dtensor/redistribution/internal/plan_run.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/representation.h"
#include "mesh/memory_meter.h"

namespace dtensor::internal {
namespace {

void run_step(PlanRun& run, const CommCause& cause, std::shared_ptr<CommWork>* work = nullptr) {
  const int64_t bytes = run.step_bytes();
  if (run.step().is_local()) {
    run.run_local();
  } else {
    PlanRun* runs[] = {&run};
    run_collective(runs, cause, work);
  }
  run.plan().from.world().memory().touch(bytes);
}

RankPieces run_all(PlanRun run, const CommCause& cause) {
  while (!run.done()) run_step(run, cause);
  return run.take_result();
}

// Whether all steps after the next one are local.
bool only_local_steps_after(const PlanRun& run) {
  const auto& steps = run.plan().steps;
  return std::all_of(steps.begin() + static_cast<std::ptrdiff_t>(run.next()) + 1, steps.end(),
                     [](const RedistributeStep& step) { return step.is_local(); });
}

bool is_one_collective_or_local(const PlanRun& run) { return run.plan().steps.size() == 1 || run.plan().is_local(); }

// REQUIRES: !works.empty().
std::shared_ptr<CommWork> wait_for_all(std::vector<std::shared_ptr<CommWork>> works) {
  if (works.size() == 1) return works[0];
  return std::make_shared<CommWork>([works = std::move(works)] {
    for (const auto& work : works) work->wait();
  });
}

void check_count(const RedistributePlan& plan, size_t count, size_t owned) {
  TORCH_CHECK(count == owned, "[redistribute] ", count, " local tensor(s) for ", owned, " owned rank(s) of ",
              plan.from.to_string());
}

bool changes_nothing(const RedistributePlan& plan) {
  return plan.steps.empty() && !plan.from.is_boxes() && !plan.to.is_boxes() && plan.from.mesh() == plan.to.mesh();
}

RankPieces as_pieces(RankTensors tensors) {
  RankPieces pieces(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) pieces[i].push_back(std::move(tensors[i]));
  return pieces;
}

RankTensors as_tensors(RankPieces pieces) {
  RankTensors tensors;
  tensors.reserve(pieces.size());
  for (auto& of_rank : pieces) tensors.push_back(std::move(of_rank.at(0)));
  return tensors;
}

// A number of an expression is on the CPU everywhere.
bool travels_from_host(const RedistributePlan& plan, at::TensorList locals) {
  return !plan.tensor.wrapped_number && is_offloaded(plan.from.world(), locals);
}

// Parts in host memory travel from the GPUs, and what arrives comes back to host memory.
template <typename Fn>
RankTensors by_gpus(const RedistributePlan& plan, RankTensors locals, const Fn& run) {
  if (!travels_from_host(plan, locals)) return run(std::move(locals));
  return parts_in_host_memory(run(parts_on_gpus(plan.from.world(), locals, owned_ranks(plan.from))));
}

// Copies those of `locals` in host memory to the GPUs. Returns, by plan, whether they were.
std::vector<bool> load_offloaded(const BatchPlan& batch, std::vector<RankTensors>& locals) {
  std::vector<bool> offloaded;
  for (size_t p = 0; p < locals.size(); ++p) {
    const Layout& from = batch.plans[p]->from;
    check_count(*batch.plans[p], locals[p].size(), owned_ranks(from).size());
    offloaded.push_back(travels_from_host(*batch.plans[p], locals[p]));
    if (offloaded[p]) locals[p] = parts_on_gpus(from.world(), locals[p], owned_ranks(from));
  }
  return offloaded;
}

// Parts that a collective under way fills in, and what they are copied to then.
struct LateCopies {
  RankTensors from, to;
  int64_t bytes = 0;  // of the largest part of each tensor and its copy
};

// Backends reduce into row-major memory: gives the results the strides of the plan's tensor. With `late`, the results
// are still to come, and it lists their copies.
template <typename Tensors>
Tensors with_strides_of(const RedistributePlan& plan, Tensors locals, LateCopies* late = nullptr) {
  if (is_row_major(plan.tensor) || changes_nothing(plan)) return locals;
  const Shape whole = in_own_memory(plan.tensor).strides;
  if (whole == row_major_strides(plan.tensor.sizes)) return locals;
  int64_t bytes = 0;  // of the largest part and its copy: both are alive meanwhile
  for (at::Tensor& local : locals) {
    const auto strides = dense_in_order_of(whole, local.sizes());
    if (has_strides(local, strides)) continue;
    bytes = std::max(bytes, 2 * static_cast<int64_t>(local.nbytes()));
    if (late != nullptr) {
      late->from.push_back(local);
      local = at::empty_strided(local.sizes(), strides, local.options());
      late->to.push_back(local);
    } else {
      ensure_strides(local, strides);
    }
  }
  if (late != nullptr) {
    late->bytes += bytes;
  } else {
    plan.from.world().memory().touch(bytes);
  }
  return locals;
}

// Lets the current stream of the device keep the memory until it has used it: it may not be the one that allocated it.
void record_use(const at::Tensor& t) {
  if (t.is_cpu()) return;
  const c10::impl::VirtualGuardImpl device(t.device().type());
  device.recordDataPtrOnStream(t.storage().data_ptr(), device.getStream(t.device()));
}

// Lets `work` make the copies, too: all of them are alive until then.
void copy_after(std::shared_ptr<CommWork>& work, LateCopies copies, const World& world) {
  if (copies.to.empty()) return;
  world.memory().touch(copies.bytes);
  work = std::make_shared<CommWork>([begun = std::move(work), copies = std::move(copies)] {
    begun->wait();
    LocalGuard guard;
    for (size_t i = 0; i < copies.to.size(); ++i) {
      copies.to[i].copy_(copies.from[i]);
      record_use(copies.to[i]);
      record_use(copies.from[i]);
    }
  });
}

RankTensors wrapped(const RedistributePlan& plan, RankTensors locals) {
  if (plan.tensor.wrapped_number) {
    for (at::Tensor& local : locals) local.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return locals;
}

// Whether all that the steps change are parts that become zero, in place.
bool only_adds_zeros(const RedistributePlan& plan) {
  const auto adds_zeros = [](const RedistributeStep& step) {
    return step.kind == RedistributeStep::Kind::kFill && (step.op == ReduceOp::kSum || step.op == ReduceOp::kNorm2);
  };
  return !plan.steps.empty() && std::all_of(plan.steps.begin(), plan.steps.end(), adds_zeros) &&
         !plan.from.is_boxes() && !plan.to.is_boxes() && plan.from.mesh() == plan.to.mesh();
}

// Whether `locals` have the layout plan.from. REQUIRES: that one has no boxes.
bool are_parts(const RedistributePlan& plan, const PlanSchedule& schedule, const RankTensors& locals) {
  if (locals.size() != schedule.inputs.size()) return false;
  for (size_t i = 0; i < locals.size(); ++i) {
    const Shape& sizes = schedule.inputs[i][0];
    const bool is_part = locals[i].sizes() == c10::IntArrayRef(sizes.data(), sizes.size());
    if (!is_part || locals[i].scalar_type() != plan.tensor.dtype) return false;
  }
  return true;
}

// Reorders pieces from the order of `ranks` to that of `wanted`.
RankPieces for_ranks(const std::vector<int64_t>& ranks, RankPieces pieces, const std::vector<int64_t>& wanted,
                     int64_t world_size) {
  if (ranks == wanted) return pieces;
  const RankSlots slots(ranks, world_size);
  RankPieces out(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (const int64_t slot = slots[wanted[i]]; slot >= 0) out[i] = std::move(pieces[slot]);
  }
  return out;
}

}  // namespace

RankTensors run_plan(const RedistributePlan& plan, RankTensors locals, const CommCause& cause) {
  TORCH_CHECK(!plan.from.is_boxes() && !plan.to.is_boxes(), "[redistribute] ", plan.from.to_string(), " -> ",
              plan.to.to_string(), ": a rank may have several boxes or none; use run_transfer");
  check_count(plan, locals.size(), owned_ranks(plan.from).size());
  if (changes_nothing(plan)) return wrapped(plan, std::move(locals));
  ForbidWholeGather::check(plan, cause);
  LocalGuard guard;
  return wrapped(plan, by_gpus(plan, std::move(locals), [&](RankTensors on_devices) {
                   return with_strides_of(plan,
                                          as_tensors(run_all(PlanRun(plan, as_pieces(std::move(on_devices))), cause)));
                 }));
}

RankTensors run_plan_to_read(const RedistributePlan& plan, RankTensors locals, const CommCause& cause) {
  if (!only_adds_zeros(plan) || plan.tensor.wrapped_number || travels_from_host(plan, locals))
    return run_plan(plan, std::move(locals), cause);
  const std::shared_ptr<const PlanSchedule> schedule = schedule_of(plan);
  if (!are_parts(plan, *schedule, locals)) return run_plan(plan, std::move(locals), cause);  // the error
  LocalGuard guard;
  for (size_t k = 0; k < plan.steps.size(); ++k) {
    const StepSchedule& s = schedule->steps[k];
    for (size_t i = 0; i < locals.size(); ++i) {
      if (s.group->position_of[s.ranks[i]] != 0) locals[i] = at::zeros_like(locals[i]);
    }
    // As of run_step(), on a rank that is not the first.
    plan.from.world().memory().touch(plan.steps[k].peak_bytes - (k == 0 ? schedule->input_bytes : 0));
  }
  const Shape whole = in_own_memory(plan.tensor).strides;
  for (at::Tensor& local : locals) {
    ensure_strides(local, dense_in_order_of(whole, local.sizes()));
  }
  return locals;
}

RankTensors begin_plan(std::shared_ptr<const RedistributePlan> plan, RankTensors locals, const CommCause& cause,
                       std::shared_ptr<CommWork>& work) {
  if (plan->is_local() || travels_from_host(*plan, locals)) return run_plan(*plan, std::move(locals), cause);
  check_count(*plan, locals.size(), owned_ranks(plan->from).size());
  ForbidWholeGather::check(*plan, cause);
  LocalGuard guard;
  PlanRun run(*plan, as_pieces(std::move(locals)));
  while (!run.done() && work == nullptr) {
    const bool may_go_on = !run.step().is_local() && only_local_steps_after(run);
    run_step(run, cause, may_go_on ? &work : nullptr);
  }
  if (run.done()) {
    LateCopies late;
    RankTensors results = with_strides_of(*plan, as_tensors(run.take_result()), work ? &late : nullptr);
    copy_after(work, std::move(late), plan->from.world());
    return wrapped(*plan, std::move(results));
  }
  RankTensors results = wrapped(*plan, as_tensors(run.reserve_result()));
  work = std::make_shared<CommWork>([begun = std::move(work), plan, run = std::move(run)]() mutable {
    begun->wait();
    while (!run.done()) run_step(run, {});
  });
  return results;
}

RankPieces run_transfer(const RedistributePlan& plan, RankPieces locals, const CommCause& cause) {
  const World& world = plan.from.world();
  const auto& owned = world.owned_ranks();
  check_count(plan, locals.size(), owned.size());
  const auto& first = owned_ranks(plan.from);
  for (size_t i = 0; i < owned.size(); ++i) {
    const bool has_place = plan.from.is_boxes() || plan.from.mesh().contains(owned[i]);
    TORCH_CHECK_VALUE(has_place || locals[i].empty(), "[redistribute] ", locals[i].size(), " tensor(s) of rank ",
                      owned[i], ", which has no place in ", plan.from.to_string());
  }
  LocalGuard guard;
  for (size_t i = 0; i < owned.size(); ++i) {  // parts in host memory travel from the GPUs
    if (!travels_from_host(plan, locals[i])) continue;
    for (at::Tensor& piece : locals[i]) piece = piece.to(world.device(owned[i]));
  }
  RankPieces results = run_all(PlanRun(plan, for_ranks(owned, std::move(locals), first, world.size())), cause);
  for (auto& of_rank : results) of_rank = with_strides_of(plan, std::move(of_rank));
  return for_ranks(owned_ranks(plan.to), std::move(results), owned, world.size());
}

std::vector<RankTensors> run_plans(const BatchPlan& batch, std::vector<RankTensors> locals, const CommCause& cause,
                                   std::shared_ptr<CommWork>* work) {
  TORCH_CHECK(locals.size() == batch.plans.size(), "[redistribute] the local tensors of ", locals.size(),
              " tensor(s) for ", batch.plans.size(), " plan(s)");
  if (batch.plans.empty()) return {};
  LocalGuard guard;
  const std::vector<bool> offloaded = load_offloaded(batch, locals);
  if (std::count(offloaded.begin(), offloaded.end(), true) > 0) work = nullptr;
  std::vector<PlanRun> runs;
  for (size_t p = 0; p < locals.size(); ++p) {
    ForbidWholeGather::check(*batch.plans[p], cause);
    runs.emplace_back(*batch.plans[p], as_pieces(std::move(locals[p])));
  }
  if (!std::all_of(runs.begin(), runs.end(), is_one_collective_or_local)) work = nullptr;
  std::vector<std::shared_ptr<CommWork>> begun;  // of the rounds
  MemoryMeter& memory = batch.plans[0]->from.world().memory();
  int64_t held = 0;  // of all runs between steps
  // `execute` runs the next step of every one of `running`.
  const auto step = [&](absl::Span<PlanRun* const> running, const auto& execute) {
    int64_t bytes = held;
    for (PlanRun* run : running) {
      bytes += run->step_bytes() - run->held_bytes();
      held -= run->held_bytes();
    }
    execute();
    memory.touch(bytes);
    for (PlanRun* run : running) held += run->held_bytes();
  };
  const auto run_local_steps = [&](PlanRun& run) {
    while (!run.done() && run.step().is_local()) {
      PlanRun* one[] = {&run};
      step(one, [&] { run.run_local(); });
    }
  };
  for (const BatchPlan::Round& round : batch.rounds) {
    std::vector<PlanRun*> running;
    for (const auto& [p, s] : round.steps) {
      run_local_steps(runs[p]);
      TORCH_INTERNAL_ASSERT(static_cast<int>(runs[p].next()) == s);
      running.push_back(&runs[p]);
    }
    std::shared_ptr<CommWork> of_round;
    step(running, [&] { run_collective(running, cause, work ? &of_round : nullptr); });
    if (of_round) begun.push_back(std::move(of_round));
  }
  if (!begun.empty()) *work = wait_for_all(std::move(begun));
  std::vector<RankTensors> results;
  LateCopies late;
  for (size_t p = 0; p < runs.size(); ++p) {
    run_local_steps(runs[p]);
    TORCH_INTERNAL_ASSERT(runs[p].done());
    const RedistributePlan& plan = *batch.plans[p];
    RankTensors result = as_tensors(runs[p].take_result());
    result = with_strides_of(plan, std::move(result), work && *work && !plan.is_local() ? &late : nullptr);
    if (offloaded[p]) result = parts_in_host_memory(result);
    results.push_back(wrapped(plan, std::move(result)));
  }
  if (!late.to.empty()) copy_after(*work, std::move(late), batch.plans[0]->from.world());
  return results;
}

}  // namespace dtensor::internal
