// Products of matrices and vectors. All are sums of products of dims, linear in each factor, so that a split of the
// inner dim leaves a Partial, and Partials pass through; the bias of addmm and its kin is a term of its own. linear(),
// matmul(), outer() and einsum() are composed of these.
#include "ops/arguments.h"
#include "ops/meta_tensor.h"
#include "ops/register.h"
#include "propagation/factor_rule.h"

namespace dtensor {
namespace {

struct Product {
  const char* op;
  const char* equation;
};

constexpr Product kProducts[] = {
    {"aten::mm", "mk,kn->mn"},
    {"aten::bmm", "bmk,bkn->bmn"},
    {"aten::addmm", "mn+mk,kn->mn"},
    {"aten::baddbmm", "bmn+bmk,bkn->bmn"},
    {"aten::addbmm", "mn+bmk,bkn->mn"},
    {"aten::mv", "mk,k->m"},
    {"aten::addmv", "m+mk,k->m"},
    {"aten::addr", "mn+m,n->mn"},
    {"aten::dot", "k,k->"},
    {"aten::vdot", "k,k->"},
};

OutputMetas dot_metas(const OpCall& call) { return metas_of({meta_tensor(*call.inputs[0]).new_empty({})}); }

OutputMetas addbmm_metas(const OpCall& call) {
  return metas_of({meta_tensor(*call.input("self"))
                       .new_empty({call.input("batch1")->sizes()[1], call.input("batch2")->sizes()[2]})});
}

// A rank may have nothing to multiply where the whole has: there ATen multiplies the bias with beta as it is, and refuses 1.0 beside
// integers, and its addmv gives back a bias that is one number as it is.
void biased_local(const LocalCall& local, torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  const at::Tensor bias = args.tensor("self");
  if (c10::isIntegralType(bias.scalar_type(), /*includeBool=*/false)) {
    for (const char* factor : {"beta", "alpha"}) args.set(factor, c10::Scalar(args[factor].toScalar().toLong()));
  }
  if (local.op.schema().name() == "aten::addmv") args.set("self", bias.expand({args.tensor("mat").size(0)}));
  local.op.callBoxed(stack);
}

}  // namespace

void register_matmul_rules(RuleRegistry& registry) {
  for (const Product& product : kProducts) {
    OpRule rule = factor_op([equation = product.equation](const OpCall& call) { return einsum(call, equation); });
    rule.value_free = {"beta", "alpha"};
    const std::string op = product.op;
    if (op == "aten::dot" || op == "aten::vdot") rule.metas = dot_metas;
    if (op == "aten::addbmm") rule.metas = addbmm_metas;
    if (op.rfind("aten::add", 0) == 0 || op == "aten::baddbmm") rule.local = biased_local;
    registry.add(op, std::move(rule));
  }
}

}  // namespace dtensor
