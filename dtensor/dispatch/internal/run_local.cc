#include "dtensor/dispatch/internal/run_local.h"

#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/internal/on_one_device.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/tensor/each_rank.h"
#include "dtensor/tensor/host_parts.h"
#include "dtensor/tensor/representation.h"
#include "propagation/decision.h"

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

// By the first local rank.
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

}  // namespace

std::string on_parts_of(const std::string& call, const DeviceMesh& mesh, size_t r) {
  return absl::StrCat("in ", call, ", on the parts of rank ", mesh.local_ranks()[r]);
}

std::vector<RankTensors> run_local(const LocalCalls& calls) {
  if (!is_offload_used()) return run_calls(calls);
  const std::vector<RankTensors> locals = on_one_device(calls.info, calls.in, calls.locals);
  return run_calls({calls.info, calls.decision, calls.in, calls.args, locals, calls.check});
}

}  // namespace dtensor::internal
