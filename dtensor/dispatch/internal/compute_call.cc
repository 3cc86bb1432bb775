#include "dtensor/dispatch/internal/compute_call.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/gradient_target.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/run_local.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/view_call.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The schema argument that a view is taken of. REQUIRES: one is a tensor.
size_t first_tensor(const Inputs& in) {
  size_t a = 0;
  while (in.slots[a].kind != ArgSlot::Kind::kTensor) ++a;
  return a;
}

}  // namespace

std::vector<RankTensors> compute_call(const OpInfo& info, const Decided& decided, const Inputs& in,
                                      c10::ArrayRef<c10::IValue> args, const std::vector<RankTensors>& locals) {
  auto outputs = run_local({info, *decided.decision, in, args, locals, /*check=*/decided.made_now});
  keep_decision(in, decided);
  report_work(info, *decided.decision, in, args);
  return outputs;
}

bool defer_call(const OpInfo& info, const Decided& decided, const Inputs& in, Stack& stack) {
  if (CallHook::registered == nullptr) return false;
  if (!decided.leaf.defined()) return false;
  Decided kept = decided;
  kept.leaf.reset();  // its gradient refers to the call
  const auto run = [&info, kept = std::move(kept)](const Inputs& inputs, c10::ArrayRef<c10::IValue> arguments,
                                                   const std::vector<RankTensors>& locals) {
    return compute_call(info, kept, inputs, arguments, locals);
  };
  const auto args = torch::jit::last(stack, info.args.size());
  at::Tensor result = CallHook::registered->defer({info, in, args, decided.decision, decided.leaf, run});
  if (!result.defined()) return false;
  note_work_elsewhere();
  count_otherwise();
  torch::jit::drop(stack, info.args.size());
  stack.emplace_back(std::move(result));
  return true;
}

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

}  // namespace dtensor::internal
