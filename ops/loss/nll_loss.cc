// Negative log likelihood, which cross entropy over class indices ends in, unless cross_entropy.cc computes it. Rows
// may be split freely; if the classes are split over ranks (a vocabulary-parallel head), each rank handles the targets
// among its own classes. A mean divides by the weights of all targets that are not ignored, so both sums are reduced in
// one all-reduce.
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/loss/loss.h"
#include "ops/reduction/rank_summaries.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// self: [C], [N, C] or (2d) [N, C, H, W]; target and the loss: without C.
FactorRule nll_rule(const OpCall& call) {
  constexpr int kClass = 0;
  const auto ndim = static_cast<int>(call.input("self")->ndim());
  std::vector<int> scores, rows;
  for (int d = 0; d < ndim; ++d) {
    const bool is_class = d == (ndim == 1 ? 0 : 1);
    scores.push_back(is_class ? kClass : d + 1);
    if (!is_class) rows.push_back(d + 1);
  }
  FactorRule rule;
  rule.inputs.resize(call.inputs.size());
  rule.inputs[call.input_index("self")] = scores;
  rule.inputs[call.input_index("target")] = rows;
  if (call.input("weight") != nullptr) rule.inputs[call.input_index("weight")] = {kClass};
  rule.need_replication = {kClass};
  if (call.has_arg("grad_output")) {
    const int grad = call.input_index("grad_output");
    if (!reduces(call)) rule.inputs[grad] = rows;
    rule.terms = {{grad}};
    rule.outputs = {scores};
  } else {
    rule.outputs = {reduces(call) ? std::vector<int>() : rows, {}};
    for (int factor : rows) rule.contractions.push_back({factor, ReduceOp::kSum});
  }
  return rule;
}

std::optional<int64_t> class_dim_of_scores(const OpCall& call, int k) {
  if (k != call.input_index("self")) return std::nullopt;
  return call.input("self")->ndim() == 1 ? 0 : 1;
}

// The total weight is zero if there is one loss per row and several rows.
bool sums_weights(const OpCall& call) { return reduces(call) || call.input("self")->ndim() == 1; }

// Every rank has some of the classes of every row: the loss is a sum over ranks, and the gradient is split like the
// scores.
DimStrategy class_split(const OpCall& call, int self, int64_t class_dim) {
  DimStrategy s;
  s.inputs.assign(call.inputs.size(), Replicate());
  s.inputs[self] = Shard(class_dim);
  if (call.input("weight") != nullptr) s.inputs[call.input_index("weight")] = Shard(0);
  if (call.has_arg("grad_output")) {
    s.outputs = {Shard(class_dim)};
  } else {
    s.outputs = {Partial(), sums_weights(call) ? Partial() : Replicate()};
  }
  return s;
}

std::vector<DimStrategy> nll_strategies(const OpCall& call, int64_t mesh_dim) {
  const int self = call.input_index("self");
  const auto class_dim = static_cast<int64_t>(call.input("self")->ndim() == 1 ? 0 : 1);
  const bool is_class_split = call.input("self")->placements()[mesh_dim] == Shard(class_dim);
  if (is_class_split && call.context.scope.keep_class_shards) return {class_split(call, self, class_dim)};
  auto result = strategies(nll_rule(call), call, mesh_dim);
  for (DimStrategy& s : result) {
    if (call.has_arg("grad_output")) {
      // Only a mean uses the total weight.
      const int total = call.input_index("total_weight");
      if (call.get_int("reduction") != at::Reduction::Mean)
        s.inputs[total] = call.inputs[total]->placements()[mesh_dim];
    } else if (!sums_weights(call)) {
      s.outputs[1] = Replicate();  // zero on every rank
    }
  }
  if (is_class_split) result.push_back(class_split(call, self, class_dim));
  return result;
}

// The classes of local rank `i`: [begin, begin + size).
IndexRange local_classes(const Spec& self, int64_t i) {
  const LocalLayout layout = self.local_layout(i);
  const auto dim = static_cast<size_t>(self.ndim() == 1 ? 0 : 1);
  return {layout.offsets[dim], total_size(layout.dims[dim])};
}

// If the classes are split, a rank handles the targets among its own classes and ignores the others.
void nll_local(const LocalCall& local, torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  const bool backward = local.op.schema().argumentIndexWithName("grad_output").has_value();
  const Spec& self = *local.inputs[backward ? 1 : 0];
  const int64_t classes = self.sizes()[self.ndim() == 1 ? 0 : 1];
  const IndexRange mine = local_classes(self, local.i);
  if (mine.size == classes) return local.op.callBoxed(stack);
  const at::Tensor target = args["target"].toTensor();
  const int64_t ignore = args["ignore_index"].toInt();
  if (target.is_cpu() && !backward) {
    const at::Tensor bad = target.ne(ignore).logical_and(target.lt(0).logical_or(target.ge(classes)));
    if (bad.any().item<bool>()) {
      TORCH_CHECK_INDEX(false, "Target ", target.masked_select(bad)[0].item<int64_t>(), " is out of bounds.");
    }
  }
  const at::Tensor outside =
      target.lt(mine.begin).logical_or(target.ge(mine.begin + mine.size)).logical_or(target.eq(ignore));
  if (mine.size == 0) {  // ATen needs at least one class
    const at::Tensor scores = args["self"].toTensor();
    const bool per_row = args["reduction"].toInt() == at::Reduction::None && self.ndim() > 1;
    const at::Tensor empty =
        backward ? at::zeros_like(scores) : scores.new_zeros(per_row ? target.sizes() : c10::IntArrayRef());
    const at::Tensor total = scores.new_zeros({});
    torch::jit::drop(stack, local.op.schema().arguments().size());
    stack.emplace_back(empty);
    if (!backward) stack.emplace_back(total);
    return;
  }
  constexpr int64_t kIgnored = -100;
  args.set("target", (target - mine.begin).masked_fill(outside, kIgnored));
  args.set("ignore_index", kIgnored);
  local.op.callBoxed(stack);
}

OutputMetas nll2d_metas(const OpCall& call) {
  const at::Tensor self = meta_tensor(*call.input("self"));
  Shape rows = call.input("self")->sizes();
  if (rows.size() == 4) rows.erase(rows.begin() + 1);
  TORCH_CHECK(call.input("target")->sizes() == rows, call.name(), ": target should have the sizes ",
              at::IntArrayRef(rows), ", as each row of scores has a class, in ", call.to_string());
  const Spec* weight = call.input("weight");
  TORCH_CHECK(weight == nullptr || self.dim() != 4 || weight->meta().numel() == self.size(1), call.name(),
              ": weight should have one element for each class, in ", call.to_string());
  return metas_of({self.new_empty(reduces(call) ? Shape() : call.input("target")->sizes()), self.new_empty({})});
}

OutputMetas nll2d_backward_metas(const OpCall& call) {
  return metas_of({meta_tensor(*call.input("self")).contiguous()});
}

// A rank's sum of losses and its weight, from the local operator's result: a sum, or for half types, in which a sum may
// overflow, a mean.
at::Tensor sum_and_weight(at::Tensor loss, at::Tensor weight) {
  if (c10::isReducedFloatingType(loss.scalar_type())) {
    weight = weight.to(at::kFloat);
    loss = loss.to(at::kFloat).mul(weight).masked_fill(weight.eq(0), 0);  // the mean of no rows is nan
  }
  return at::stack({loss, weight});
}

// The mean divides by the weights of all targets that are not ignored, a sum over ranks: both sums are reduced in one
// all-reduce.
void nll_forward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  std::string module;
  {
    Arguments args(op, stack);
    if (args["reduction"].toInt() != at::Reduction::Mean) return dispatch_by_rule(op, stack);
    // For plain out tensors: LibTorch's error or operator.
    if (op.schema().argumentIndexWithName("output")) return dispatch_by_rule(op, stack);
    const bool half = c10::isReducedFloatingType(args["self"].toTensor().scalar_type());
    module = module_of_call(args["self"].toTensor());
    args.set("reduction", half ? at::Reduction::Mean : at::Reduction::Sum);
  }
  dispatch_by_rule(op, stack);
  const at::Tensor total = torch::jit::pop(stack).toTensor();
  const at::Tensor loss = torch::jit::pop(stack).toTensor();
  const DTensorMeta& meta = meta_for_read(loss);
  const DeviceMesh& mesh = meta.spec->mesh();
  const c10::ScalarType dtype = meta.spec->dtype();
  RankTensors pairs;
  {
    LocalGuard guard;
    for (size_t i = 0; i < meta.locals.size(); ++i) {
      pairs.push_back(sum_and_weight(meta.locals[i], meta_for_read(total).locals[i]));
    }
  }
  at::Tensor pair = make_dtensor(Spec::get(mesh, meta.spec->placements(), {2}, widened(dtype)), std::move(pairs));
  const Placements whole(mesh.ndim(), Replicate());
  pair =
      redistribute_below_autograd(pair, whole, {op.schema().name(), "reduction", std::move(module), /*implicit=*/true});
  RankTensors means, totals;
  {
    LocalGuard guard;
    for (const at::Tensor& both : meta_for_read(pair).locals) {
      means.push_back(both.select(0, 0).div(both.select(0, 1)).to(dtype));
      totals.push_back(both.select(0, 1).clone().to(dtype));
    }
  }
  const SpecPtr scalar = Spec::get(mesh, whole, {}, dtype);
  stack.emplace_back(make_dtensor(scalar, std::move(means)));
  stack.emplace_back(make_dtensor(scalar, std::move(totals)));
}

// nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight). A row of the gradient
// has one non-zero, at the target. If classes are split, their sum does not depend on which rank has it.
void nll_backward(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::vector<c10::IValue> args = torch::jit::last(stack, op.schema().arguments().size()).vec();
  dispatch_by_rule(op, stack);
  const at::Tensor grad = stack.back().toTensor();
  if (args.size() != 7 || (args[3].isTensor() && args[3].toTensor().defined()) || grad.dim() < 2 ||
      !is_split(grad, {1}))
    return;
  for (const size_t a : {0, 2, 6}) {
    if (!is_dtensor(args[a].toTensor()) || spec_of(args[a].toTensor())->has_partial()) return;
  }
  const at::Tensor target = args[2].toTensor();
  at::Tensor of_row = -args[0].toTensor();
  if (args[4].toInt() == at::Reduction::Mean) of_row = of_row / args[6].toTensor();
  cache_sums(grad, 1, at::where(target.ne(args[5].toInt()), of_row, at::zeros_like(of_row)).unsqueeze(1));
}

}  // namespace

const RuleFamily nll_loss_rules("nll_loss", [](RuleRegistry& registry) {
  OpRule nll;
  nll.per_dim = nll_strategies;
  nll.local = nll_local;
  nll.class_dim = class_dim_of_scores;
  registry.add("aten::nll_loss_forward", nll);
  registry.add("aten::nll_loss_backward", nll);
  nll.metas = nll2d_metas;
  registry.add("aten::nll_loss2d_forward", nll);
  nll.metas = nll2d_backward_metas;
  registry.add("aten::nll_loss2d_backward", nll);
  registry.add_handler("aten::nll_loss_forward", nll_forward);
  registry.add_handler("aten::nll_loss2d_forward", nll_forward);
  registry.add_handler("aten::nll_loss_backward", nll_backward);
  registry.add_handler("aten::nll_loss2d_backward", nll_backward);
});

}  // namespace dtensor::internal
