#include "dtensor/dispatch/dispatch.h"

#include <c10/util/Exception.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/call_without_rule.h"
#include "dtensor/dispatch/internal/call_writes.h"
#include "dtensor/dispatch/internal/chunked_call.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/gradient_target.h"
#include "dtensor/dispatch/internal/input_moves.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/on_one_device.h"
#include "dtensor/dispatch/internal/plain_dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/tensor/each_rank.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/view_call.h"
#include "plan/redistribute_planner.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

void check_local(const OpInfo& info, const Spec& spec, const at::Tensor& local, int64_t rank_index) {
  const Shape expected = spec.local_shape(rank_index);
  TORCH_CHECK(local.defined() && local.sizes() == c10::IntArrayRef(expected.data(), expected.size()) &&
                  local.scalar_type() == spec.dtype(),
              info.name, ": the sharding rule says that rank ", spec.mesh().local_ranks()[rank_index], " computes ",
              spec.to_string(), " locally of shape ", c10::IntArrayRef(expected.data(), expected.size()),
              ", but the local operator gave ",
              local.defined() ? c10::str(local.sizes(), " ", local.scalar_type()) : std::string("nothing"),
              ". The rule of this operator is wrong.");
}

// By the first local rank; 0 of operators whose ranks compute one after the other: views, as they take no time, and
// random ones, as the order of their ranks is that of the numbers they draw.
int64_t num_elements_to_read(const OpInfo& info, const std::vector<RankTensors>& locals) {
  int64_t num = 0;
  if (info.is_view || is_random(info.op)) return num;
  for (const RankTensors& input : locals) num += input.empty() ? 0 : num_cpu_elements(input[0]);
  return num;
}

// What the calls of the local operator on all owned ranks share.
struct LocalCalls {
  const OpInfo& info;
  const Decision& decision;
  const Inputs& in;
  c10::ArrayRef<c10::IValue> args;
  const std::vector<RankTensors>& locals;
  bool check;
};

// Sets outputs[k][r] to output k on local rank r.
void run_on_rank(const LocalCalls& calls, size_t r, std::vector<RankTensors>& outputs) {
  const auto& [info, decision, in, args, locals, check] = calls;
  Stack stack;
  stack.reserve(args.size());
  fill_local_stack(stack, in, args, locals, r);
  if (decision.rule->local) {
    const WrittenResults written(info, stack);
    decision.rule->local({info.op, decision.computed, decision.outputs, static_cast<int64_t>(r), in.mesh}, stack);
    written.settle(stack);
  } else {
    info.op.callBoxed(stack);
  }
  size_t k = 0;
  for (auto& result : stack) {
    if (result.isTensor()) {
      outputs.at(k++)[r] = std::move(result).toTensor();
    } else {
      for (const auto& x : result.toListRef()) outputs.at(k++)[r] = x.toTensor();
    }
  }
  TORCH_CHECK(k == decision.outputs.size(), info.name, ": the local operator gave ", k, " tensors where ",
              decision.outputs.size(), " were expected.");
  for (size_t o = 0; check && o < outputs.size(); ++o) {
    if (decision.outputs[o]) check_local(info, *decision.outputs[o], outputs[o][r], static_cast<int64_t>(r));
  }
}

// Runs the local operator on each owned rank; outputs[k][i] is output k on local rank i.
std::vector<RankTensors> run_local(const LocalCalls& calls) {
  const size_t ranks = calls.in.mesh.local_ranks().size();
  std::vector<RankTensors> outputs(calls.decision.outputs.size(), RankTensors(ranks));
  LocalGuard guard;
  for_each_rank(
      ranks, [&] { return num_elements_to_read(calls.info, calls.locals); },
      [&](size_t r) { run_on_rank(calls, r, outputs); });
  return outputs;
}

// The schema argument that a view is taken of. REQUIRES: one is a tensor.
size_t first_tensor(const Inputs& in) {
  size_t a = 0;
  while (in.slots[a].kind != ArgSlot::Kind::kTensor) ++a;
  return a;
}

// The results of the local operators, from inputs that were moved.
std::vector<RankTensors> compute_call(const OpInfo& info, const Decided& decided, const Inputs& in,
                                      c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals) {
  auto outputs = is_offload_used()
                     ? run_local({info, *decided.decision, in, args, on_one_device(info, in, locals), decided.made_now})
                     : run_local({info, *decided.decision, in, args, locals, decided.made_now});
  keep_decision(in, decided);
  report_work(info, *decided.decision, in, args);
  return outputs;
}

// Whether the hook defers the call: then its result has replaced the arguments on the stack.
bool defer_call(const OpInfo& info, const Decided& decided, const Inputs& in, Stack& stack) {
  if (CallHook::registered == nullptr) return false;
  const at::Tensor leaf = leaf_of_gradient(*info.rule());
  if (!leaf.defined()) return false;
  const auto run = [&info, decided](const Inputs& inputs, c10::ArrayRef<c10::IValue> arguments,
                                    const std::vector<RankTensors>& locals) {
    return compute_call(info, decided, inputs, arguments, locals);
  };
  const auto args = torch::jit::last(stack, info.args.size());
  at::Tensor result = CallHook::registered->defer({info, in, args, decided.decision, leaf, run});
  if (!result.defined()) return false;
  note_work_elsewhere();
  count_otherwise();
  torch::jit::drop(stack, info.args.size());
  stack.emplace_back(std::move(result));
  return true;
}

// Replaces the arguments on the stack by the results in the form that the schema requires: tensors, or lists of
// tensors; written arguments are returned themselves.
void wrap_results(const OpInfo& info, const Decision& decision, const Inputs& in, std::vector<RankTensors> outputs,
                  Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  const auto make = [&](size_t k) -> at::Tensor {
    if (info.is_view) {
      const size_t base_arg = first_tensor(in);
      const int i = in.slots[base_arg].first;
      const bool moved = decision.input_plans[i] && !decision.input_plans[i]->steps.empty();
      return make_view_of({info.op, args, base_arg, k, decision.computed[i]->placements()}, decision.outputs[k],
                          std::move(outputs[k]), decision.output_offsets.empty() ? 0 : decision.output_offsets[k],
                          moved);
    }
    const auto input = absl::c_find_if(in.tensors, [](const at::Tensor& t) { return t.defined(); });
    return make_result_of(*input, SpecPtr(decision.outputs[k]), std::move(outputs[k]));
  };
  const auto wrap = [&](size_t k) {
    if (!decision.outputs[k]) return at::Tensor();
    at::Tensor t = make(k);
    if (!decision.output_hints.empty()) mutable_hints(t).hints = decision.output_hints[k];
    return t;
  };
  Stack results;
  size_t k = 0;
  for (size_t r = 0; r < decision.output_counts.size(); ++r) {
    if (info.written_inputs[r] >= 0) {
      results.push_back(args[info.written_inputs[r]]);
      k += decision.output_counts[r] < 0 ? 1 : decision.output_counts[r];
    } else if (decision.output_counts[r] < 0) {
      results.emplace_back(wrap(k++));
    } else {
      c10::List<at::Tensor> list;
      for (int j = 0; j < decision.output_counts[r]; ++j) list.push_back(wrap(k++));
      results.emplace_back(std::move(list));
    }
  }
  torch::jit::drop(stack, info.args.size());
  for (auto& r : results) stack.push_back(std::move(r));
  if (in.has_module_traits) keep_cast_of_parameter(info, in.tensors[0], stack);
}

// REQUIRES: the operator has a rule.
void run_by_rule(const OpInfo& info, Stack& stack) {
  if (run_to_resize(info, stack)) return;
  const auto args = torch::jit::last(stack, info.args.size());
  Inputs in = gather_inputs(info, args);
  check_hooks_ran(info, in);
  if (in.writes_plain) return write_to_plain(info, in.mesh, stack);
  CallWrites writes(info, in);
  if (writes.are_related()) return run_one_by_one(info, stack);
  use_copies(info, args, in);
  const Decided decided = decide_call(info, in, args);
  if (defer_call(info, decided, in, stack)) return;
  auto outputs = run_in_chunks(info, decided, in, args);
  if (!outputs) {
    const auto locals = move_inputs(info, *decided.decision, in);
    writes.begin();
    outputs = compute_call(info, decided, in, args, locals);
  }
  writes.done();
  wrap_results(info, *decided.decision, in, *std::move(outputs), stack);
}

}  // namespace

void dispatch(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  if (!has_dtensor(info, args)) return dispatch_plain(info, *stack);
  const CallInProgress call(info, args);
  if (info.handler == nullptr && info.rule()) {
    run_by_rule(info, *stack);
  } else {
    dispatch_without_rule(info, *stack);
  }
  call.done();
}

void dispatch_by_rule(const c10::OperatorHandle& op, Stack& stack) {
  count_as_given();
  const OpInfo& info = op_info(op);
  info.rule() ? run_by_rule(info, stack) : run_without_rule(info, stack);
}

}  // namespace dtensor::internal
