#include "dtensor/dispatch/dispatch.h"

#include <optional>
#include <vector>

#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_in_progress.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/call_without_rule.h"
#include "dtensor/dispatch/internal/call_writes.h"
#include "dtensor/dispatch/internal/chunked_call.h"
#include "dtensor/dispatch/internal/compute_call.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/input_moves.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/plain_dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// REQUIRES: the operator has a rule.
void run_by_rule(const OpInfo& info, Stack& stack) {
  if (info.has_outs && run_to_resize(info, stack)) return;
  const auto args = torch::jit::last(stack, info.args.size());
  Inputs in = gather_inputs(info, args);
  if (in.has_module_traits) check_hooks_ran(info, in);
  if (in.writes_plain) return write_to_plain(info, in.mesh, stack);
  CallWrites writes(info, in);
  if (in.observed && writes.are_related()) return run_one_by_one(info, stack);
  if (in.has_partial || in.has_module_traits) use_copies(info, args, in);
  const Decided decided = decide_call(info, in, args);
  if (defer_call(info, decided, in, stack)) return;
  std::optional<std::vector<RankTensors>> outputs;
  if (current_dispatch_scope().communication_chunks > 1) outputs = run_in_chunks(info, decided, in, args);
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
