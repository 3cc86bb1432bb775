// The loss of connectionist temporal classification: the batch may be split, time and classes are whole. Lengths are
// one number per sequence: a rank takes those of its own sequences.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/plain_numbers.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

int64_t longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0 : std::max<int64_t>(0, *std::max_element(lengths.begin(), lengths.end()));
}

void check(const OpCall& call) {
  const Spec &log_probs = *call.input("log_probs"), &targets = *call.input("targets");
  TORCH_CHECK(log_probs.ndim() == 3 && (targets.ndim() == 1 || targets.ndim() == 2),
              "ctc_loss: log_probs of 3 dims and targets of 1 or 2 dims expected, in ", call.to_string());
  const auto batch = static_cast<size_t>(log_probs.sizes()[1]);
  for (const char* name : {"input_lengths", "target_lengths"})
    TORCH_CHECK(call.get_ints(name)->size() == batch, "ctc_loss: ", name, " must be one per sequence, ", batch,
                ", but are ", call.get_ints(name)->size());
  const auto targets_of = *call.get_ints("target_lengths");
  const int64_t all = std::accumulate(targets_of.begin(), targets_of.end(), int64_t{0});
  TORCH_CHECK(targets.ndim() == 2 || all == targets.sizes()[0], "ctc_loss: expected ", all,
              " targets, as many as target_lengths say, but got ", targets.sizes()[0]);
  TORCH_CHECK(
      targets.ndim() == 1 || (targets.sizes()[0] == log_probs.sizes()[1] && longest(targets_of) <= targets.sizes()[1]),
      "ctc_loss: expected targets of one row per sequence, with as many columns as the longest, in ", call.to_string());
}

// The loss of each sequence, and the log probabilities of all its alignments, whose width is that of the longest target
// of all.
OutputMetas ctc_loss_metas(const OpCall& call) {
  check(call);
  const Spec& log_probs = *call.input("log_probs");
  const int64_t time = log_probs.sizes()[0], batch = log_probs.sizes()[1];
  OutputMetas metas = contiguous_metas({batch}, {log_probs.dtype()});
  const int64_t width = 2 * longest(*call.get_ints("target_lengths")) + 1;
  metas.tensors.push_back(contiguous_metas({batch, time, width}, {log_probs.dtype()}).tensors[0]);
  metas.counts.push_back(-1);
  return metas;
}

OutputMetas ctc_loss_backward_metas(const OpCall& call) {
  check(call);
  return contiguous_metas(call.input("log_probs")->sizes(), {call.input("log_probs")->dtype()});
}

bool concatenated(const OpCall& call) { return call.input("targets")->ndim() == 1; }

CoreDims ctc_loss_dims(const OpCall& call) {
  return {einsum(call, concatenated(call) ? "TnC,S->n,nTA" : "TnC,nS->n,nTA", /*linear=*/false), {}};
}
CoreDims ctc_loss_backward_dims(const OpCall& call) {
  CoreDims dims{einsum(call, concatenated(call) ? "n,TnC,S,n,nTA->TnC" : "n,TnC,nS,n,nTA->TnC", false), {}};
  dims.rule.terms = {{call.input_index("grad")}};
  return dims;
}

// The lengths of this rank's sequences and, where targets are concatenated, their targets. A rank without sequences
// gets one without targets.
void take_own(const LocalCall& local, Arguments& args) {
  const bool backward = !args["grad"].isNone();
  const Spec& log_probs = *local.inputs[backward ? 1 : 0];
  const IndexRanges own = local.outputs[0]->local_layout(local.i).dims[backward ? 1 : 0];
  const auto of_inputs = args["input_lengths"].toIntVector(), of_targets = args["target_lengths"].toIntVector();
  std::vector<int64_t> inputs, targets;
  std::vector<at::Tensor> pieces;
  at::Tensor all = args.tensor("targets");
  for (const IndexRange& run : own) {
    const auto first = of_targets.begin() + run.begin, last = first + run.size;
    inputs.insert(inputs.end(), of_inputs.begin() + run.begin, of_inputs.begin() + run.begin + run.size);
    targets.insert(targets.end(), first, last);
    if (all.dim() == 1)
      pieces.push_back(all.narrow(0, std::accumulate(of_targets.begin(), first, int64_t{0}),
                                  std::accumulate(first, last, int64_t{0})));
  }
  if (inputs.empty() && log_probs.sizes()[1] > 0) {
    inputs = {log_probs.sizes()[0]};
    targets = {0};
  }
  args.set("input_lengths", inputs);
  args.set("target_lengths", targets);
  if (all.dim() == 1) args.set("targets", pieces.empty() ? all.narrow(0, 0, 0) : at::cat(pieces));
}

// Uses the same width as all other ranks.
void forward_local(const std::function<void(const LocalCall&, Stack&)>& run, const LocalCall& local, Stack& stack) {
  run(local, stack);
  const at::Tensor alphas = torch::jit::peek(stack, 1, 2).toTensor();
  const int64_t missing = local.outputs[1]->sizes()[2] - alphas.size(2);
  if (missing > 0)
    torch::jit::peek(stack, 1, 2) = at::constant_pad_nd(alphas, {0, missing}, -std::numeric_limits<double>::infinity());
}

// ------------------------------------------------------------ lengths as tensors

std::vector<int64_t> read_lengths(const c10::OperatorHandle& op, const Arguments& args, const char* name) {
  const at::Tensor t = args.tensor(name);
  TORCH_CHECK(c10::isIntegralType(t.scalar_type(), /*includeBool=*/false), name, " must be integral");
  const at::Tensor numbers = plain_numbers(t, op, name).to(at::kLong).contiguous();
  return {numbers.const_data_ptr<int64_t>(), numbers.const_data_ptr<int64_t>() + numbers.numel()};
}

// Calls the overload with lengths as lists.
void with_lists(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  for (const char* name : {"input_lengths", "target_lengths"}) args.set(name, read_lengths(op, args, name));
  const std::string& name = op.schema().name();
  c10::Dispatcher::singleton()
      .findSchemaOrThrow(name.c_str(), name == "aten::ctc_loss" ? "IntList" : "")
      .callBoxed(stack);
}

// Vendor libraries need the lengths and the memory of the whole batch.
void not_by_vendor(const c10::OperatorHandle& op, Stack& stack) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(false);
}

}  // namespace

const RuleFamily ctc_loss_rules("ctc_loss", [](RuleRegistry& registry) {
  OpRule forward = core_dims_rule(ctc_loss_dims, ctc_loss_metas, take_own);
  forward.local = [run = forward.local](const LocalCall& local, Stack& stack) { forward_local(run, local, stack); };
  registry.add("aten::_ctc_loss", std::move(forward));
  registry.add("aten::_ctc_loss_backward", core_dims_rule(ctc_loss_backward_dims, ctc_loss_backward_metas, take_own));
  for (const char* op : {"aten::ctc_loss.Tensor", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward.Tensor"})
    registry.add_handler(op, with_lists);
  for (const char* op : {"aten::_use_cudnn_ctc_loss", "aten::_use_miopen_ctc_loss"})
    registry.add_handler(op, not_by_vendor);
});

}  // namespace dtensor::internal
