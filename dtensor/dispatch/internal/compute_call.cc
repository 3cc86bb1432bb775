#include "dtensor/dispatch/internal/compute_call.h"

#include <c10/util/Exception.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/gradient_target.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/internal/on_one_device.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/tensor/each_rank.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/view_call.h"
#include "plan/redistribute_plan.h"
#include "propagation/decision.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The calls of the local operator, one per rank that this process owns.
struct LocalCalls {
  const OpInfo& info;
  const Decision& decision;
  const Inputs& in;
  c10::ArrayRef<c10::IValue> args;
  const std::vector<RankTensors>& locals;  // of the inputs, as the decision lays them out
  bool check;                              // that results have the shapes and dtypes that the decision says
};

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

// Those of the first local rank.
int64_t num_elements_to_read(const LocalCalls& calls) {
  int64_t num = 0;
  if (calls.info.one_rank_at_a_time) return num;
  for (const RankTensors& input : calls.locals) num += input.empty() ? 0 : num_cpu_elements(input[0]);
  return num;
}

// Sets outputs[k][r] to output k on local rank r.
void run_on_rank(const LocalCalls& calls, size_t r, std::vector<RankTensors>& outputs) {
  const auto& [info, decision, in, args, locals, check] = calls;
  Stack stack;
  stack.reserve(args.size());
  fill_local_stack(stack, in, args, locals, r);
  try {
    if (decision.rule->local) {
      const WrittenResults written(info, stack);
      decision.rule->local({info.op, decision.computed, decision.outputs, static_cast<int64_t>(r), in.mesh}, stack);
      written.settle(stack);
    } else {
      info.op.callBoxed(stack);
    }
  } catch (c10::Error& e) {
    e.add_context(on_parts_of(decision.call->to_string(), in.mesh, r));
    throw;
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

std::vector<RankTensors> run_calls(const LocalCalls& calls) {
  const size_t ranks = calls.in.mesh.local_ranks().size();
  std::vector<RankTensors> outputs(calls.decision.outputs.size(), RankTensors(ranks));
  const LocalGuard guard;
  run_on_each_rank(
      ranks, [&] { return num_elements_to_read(calls); }, [&](size_t r) { run_on_rank(calls, r, outputs); });
  return outputs;
}

// outputs[k][r]: output k on local rank r. The ranks' parts of the inputs may be on several devices (host_parts.h).
std::vector<RankTensors> run_local(const LocalCalls& calls) {
  if (!is_offload_used()) return run_calls(calls);
  const std::vector<RankTensors> locals = on_one_device(calls.info, calls.in, calls.locals);
  return run_calls({calls.info, calls.decision, calls.in, calls.args, locals, calls.check});
}

// The schema argument that a view is taken of. REQUIRES: one is a tensor.
size_t first_tensor(const Inputs& in) {
  size_t a = 0;
  while (in.slots[a].kind != ArgSlot::Kind::kTensor) ++a;
  return a;
}

}  // namespace

std::string on_parts_of(const std::string& call, const DeviceMesh& mesh, size_t r) {
  return absl::StrCat("in ", call, ", on the parts of rank ", mesh.local_ranks()[r]);
}

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
