#include "dtensor/dispatch/dispatch.h"

#include <c10/util/Exception.h>

#include "absl/algorithm/container.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/call_writes.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/gradient_target.h"
#include "dtensor/dispatch/internal/input_moves.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/on_one_device.h"
#include "dtensor/dispatch/internal/plain_dispatch.h"
#include "dtensor/dispatch/internal/replicated_dispatch.h"
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

// Results in the form that the schema requires: tensors, or lists of tensors; written arguments are returned
// themselves.
void push_results(const OpInfo& info, const Decision& decision, const Inputs& in, std::vector<RankTensors> outputs,
                  c10::ArrayRef<c10::IValue> args, Stack& results) {
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
}

// Like ATen's fallback for lists.
void run_one_by_one(const OpInfo& info, Stack& stack) {
  constexpr auto kSlow = c10::DispatchKey::CompositeExplicitAutograd;
  TORCH_CHECK_NOT_IMPLEMENTED(info.op.hasKernelForDispatchKey(kSlow), info.name,
                              ": writes to several views of one distributed tensor "
                              "whose parts had to move for them. Write to them one after another.");
  info.op.callBoxedForDispatchKey(kSlow, stack);
}

// The results of the local operators, from inputs that were moved.
std::vector<RankTensors> run_decided(const OpInfo& info, const Decided& decided, const Inputs& in,
                                     c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals) {
  auto outputs = is_offload_used()
                     ? run_local({info, *decided.decision, in, args, on_one_device(info, in, locals), decided.made_now})
                     : run_local({info, *decided.decision, in, args, locals, decided.made_now});
  keep_decision(in, decided);
  report_work(info, *decided.decision, in, args);
  return outputs;
}

// The result of a call that the hook defers; undefined: it is to run now.
at::Tensor defer_call(const OpInfo& info, const Decided& decided, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  if (CallHook::registered == nullptr) return {};
  const at::Tensor leaf = leaf_of_gradient(*info.rule());
  if (!leaf.defined()) return {};
  const auto run = [&info, decided](const Inputs& inputs, c10::ArrayRef<c10::IValue> arguments,
                                    const std::vector<RankTensors>& locals) {
    return run_decided(info, decided, inputs, arguments, locals);
  };
  return CallHook::registered->defer({info, in, args, decided.decision, leaf, run});
}

void run_rule(const OpInfo& info, Inputs in, Stack& stack) {
  const CallWrites writes(info, in);
  if (in.observed && writes.are_related()) {
    count_otherwise();
    return run_one_by_one(info, stack);
  }
  const auto args = torch::jit::last(stack, info.args.size());
  const Decided decided = decide_call(info, in, args);
  const std::shared_ptr<const Decision> decision = decided.decision;
  if (const at::Tensor result = defer_call(info, decided, in, args); result.defined()) {
    note_work_elsewhere();
    count_otherwise();
    torch::jit::drop(stack, info.args.size());
    return stack.push_back(result);
  }
  std::vector<RankTensors> outputs;
  if (auto computed = run_in_chunks(info, *decision, in, args)) {
    outputs = *std::move(computed);
    note_work_elsewhere();
    keep_decision(in, decided);
  } else {
    const std::vector<RankTensors> locals = move_inputs(info, *decision, in);
    try {
      outputs = run_decided(info, decided, in, args, locals);
    } catch (...) {
      writes.note_failed();
      throw;
    }
  }
  writes.note();

  Stack results;
  push_results(info, *decision, in, std::move(outputs), args, results);
  torch::jit::drop(stack, info.args.size());
  for (auto& r : results) stack.push_back(std::move(r));
}

void run_by_rule(const OpInfo& info, Stack& stack) {
  const bool has_rule = info.rule() != nullptr;
  if (!has_rule && info.composite_implicit) {
    return info.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  }
  if (has_rule && has_empty_out(info, torch::jit::last(stack, info.args.size())) && run_functional_form(info, stack))
    return count_otherwise();
  Inputs in = gather_inputs(info, torch::jit::last(stack, info.args.size()));
  check_hooks_ran(info, in);
  if (in.writes_plain || !has_rule) count_otherwise();
  if (in.writes_plain) return write_to_plain(info, in.mesh, stack);
  if (in.observed) CallWrites(info, in).check();
  if (!has_rule) return run_without_rule(info, in, stack);
  use_gathered_parameters(info, in);
  use_reduced_copies(info, torch::jit::last(stack, info.args.size()), in);
  const at::Tensor first = in.has_module_traits ? in.tensors[0] : at::Tensor();
  run_rule(info, std::move(in), stack);
  if (first.defined()) keep_cast_of_parameter(info, first, stack);
}

// Whether an argument that the operator writes to is a plain tensor.
bool writes_plain(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (size_t a = 0; a < args.size(); ++a) {
    const auto is_plain = [](const at::Tensor& t) { return t.defined() && !is_dtensor(t); };
    if (info.args[a].written && any_tensor(args.slice(a, 1), is_plain)) return true;
  }
  return false;
}

void dispatch_to_handler(const OpInfo& info, const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  prepare_parameters(info, args);
  if (info.has_outs) {
    count_otherwise();
    if (run_functional_form(info, stack)) return;
    if (writes_plain(info, args)) return write_to_plain(info, gather_inputs(info, args).mesh, stack);
  }
  const WrittenResults written(info, stack);
  const HandlerCall counted;
  info.handler(op, stack);
  written.settle(stack);
}

}  // namespace

void dispatch(const c10::OperatorHandle& op, Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto args = torch::jit::last(*stack, info.args.size());
  if (!has_dtensor(info, args)) {
    count_otherwise();
    return dispatch_plain(info, *stack, /*within_operator=*/CallInProgress::any());
  }
  const CallInProgress call(info, args);
  if (info.handler == nullptr && info.rule()) {
    run_by_rule(info, *stack);
  } else if (info.handler != nullptr && info.is_view) {  // writes nothing, and does no work to report
    prepare_parameters(info, args);
    const HandlerCall counted;
    info.handler(op, *stack);
  } else {
    const CallWithoutRule work(info, args);
    info.handler == nullptr ? run_by_rule(info, *stack) : dispatch_to_handler(info, op, *stack);
    work.report(*stack);
  }
  call.done();
}

void dispatch_by_rule(const c10::OperatorHandle& op, Stack& stack) {
  count_as_given();
  run_by_rule(op_info(op), stack);
}

}  // namespace dtensor::internal
