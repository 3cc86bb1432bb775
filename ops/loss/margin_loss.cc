// Margin losses on rows of class scores: rows may be split, classes are whole. A mean is a sum of the ranks' shares,
// each scaled by the global count.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>

#include <functional>
#include <string>
#include <utility>

#include "ops/loss/loss.h"
#include "ops/support/core_dims.h"

namespace dtensor::internal {
namespace {

struct MarginLoss {
  const char* op;
  const char* each;     // the equation of a loss for every row
  const char* reduced;  // for one of all rows
  const char* one_row;  // for a single row, without batch
  const char* listed;   // the same, with a 1-d target, and so a 1-d loss unless it is reduced
  const char* listed_reduced;
  const char* number;  // of one class, without dims
};

// Of self and target; backward operators have grad_output first.
constexpr MarginLoss kMarginLosses[] = {
    {"aten::multi_margin_loss", "nC,n,C->n", "nC,n,C->", "C,,C->", "C,T,C->T", "C,T,C->", ",,C->"},
    {"aten::multi_margin_loss_backward", "n,nC,n,C->nC", ",nC,n,C->nC", ",C,,C->C", "T,C,T,C->C", ",C,T,C->C",
     ",,,C->"},
    {"aten::multilabel_margin_loss_forward", "nC,nC->n,nC", "nC,nC->,nC", "C,C->,C", "C,C->,C", "C,C->,C", ",->,"},
    {"aten::multilabel_margin_loss_backward", "n,nC,nC,nC->nC", ",nC,nC,nC->nC", ",C,C,C->C", ",C,C,C->C", ",C,C,C->C",
     ",,,->"},
};

template <size_t kIndex>
std::string equation(const OpCall& call) {
  const MarginLoss& loss = kMarginLosses[kIndex];
  if (call.input("self")->ndim() <= 1) {
    if (call.input("target")->ndim() == 0) return call.input("self")->ndim() == 0 ? loss.number : loss.one_row;
    return reduces(call) ? loss.listed_reduced : loss.listed;
  }
  return reduces(call) ? loss.reduced : loss.each;
}

// One rank's share: the sum over its rows, possibly none, divided by the number of all rows.
void local_share(const std::function<void(const LocalCall&, torch::jit::Stack&)>& run, const LocalCall& local,
                 torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  const bool backward = !args["grad_output"].isNone();
  const Spec& self = *local.inputs[backward ? 1 : 0];
  const bool mean = args["reduction"].toInt() == at::Reduction::Mean && self.ndim() > 1;
  if (mean) args.set("reduction", static_cast<int64_t>(at::Reduction::Sum));
  const bool nothing = !backward && self.ndim() > 1 && args.tensor("self").size(0) == 0;
  run(local, stack);
  if (!stack[0].isTensor()) return;
  at::Tensor result = stack[0].toTensor();
  if (nothing) result.zero_();  // a stand-in's
  if (mean) result.div_(static_cast<double>(self.sizes()[0]));
}

template <size_t kIndex>
void add_margin_loss(RuleRegistry& registry) {
  CoreDimsOp line;
  line.op = kMarginLosses[kIndex].op;
  line.equation = "";
  line.linear = std::string(line.op).ends_with("backward") ? "grad_output" : "";
  line.choose = equation<kIndex>;
  OpRule rule = core_dims_rule(line);
  rule.local = [run = rule.local](const LocalCall& local, torch::jit::Stack& stack) { local_share(run, local, stack); };
  registry.add(line.op, std::move(rule));
}

}  // namespace

const RuleFamily margin_loss_rules("margin_loss", [](RuleRegistry& registry) {
  add_margin_loss<0>(registry);
  add_margin_loss<1>(registry);
  add_margin_loss<2>(registry);
  add_margin_loss<3>(registry);
});

}  // namespace dtensor::internal
