#include "dtensor/dispatch/internal/call_without_rule.h"

#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/call_writes.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/plain_dispatch.h"
#include "dtensor/dispatch/internal/replicated_dispatch.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Whether an argument that the operator writes to is a plain tensor.
bool writes_plain(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (size_t a = 0; a < args.size(); ++a) {
    const auto is_plain = [](const at::Tensor& t) { return t.defined() && !is_dtensor(t); };
    if (info.args[a].written && any_tensor(args.slice(a, 1), is_plain)) return true;
  }
  return false;
}

void run_handler(const OpInfo& info, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  prepare_parameters(info, args);
  if (info.has_outs) {
    count_otherwise();
    if (run_functional_form(info, stack)) return;
    if (writes_plain(info, args)) return write_to_plain(info, gather_inputs(info, args).mesh, stack);
  }
  const WrittenResults written(info, stack);
  const HandlerCall counted;
  info.handler(info.op, stack);
  written.settle(stack);
}

}  // namespace

void run_without_rule(const OpInfo& info, Stack& stack) {
  if (info.composite_implicit) {
    return info.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack);
  }
  const Inputs in = gather_inputs(info, torch::jit::last(stack, info.args.size()));
  if (in.has_module_traits) check_hooks_ran(info, in);
  if (in.writes_plain) return write_to_plain(info, in.mesh, stack);
  count_otherwise();
  const CallWrites checked(info, in);
  run_replicated(info, in, stack);
}

void dispatch_without_rule(const OpInfo& info, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  if (info.handler != nullptr && info.is_view) {  // writes nothing, and does no work to report
    prepare_parameters(info, args);
    const HandlerCall counted;
    return info.handler(info.op, stack);
  }
  const WorkWithoutRule work(info, args);
  info.handler == nullptr ? run_without_rule(info, stack) : run_handler(info, stack);
  work.report(stack);
}

}  // namespace dtensor::internal
