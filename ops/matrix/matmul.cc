// Products of matrices and vectors. All are sums of products, linear in each factor, so that splitting the inner dim
// gives a Partial, and Partials pass through; the bias of addmm and the like is a separate term. linear(), matmul(),
// outer() and einsum() are composed of these.
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/addcmul.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <vector>

#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
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

// ATen computes it elementwise: the bias and a column times a row. Its meta kernel ignores the bias if beta is 0, and
// with it the result's dtype and strides.
OutputMetas addr_metas(const OpCall& call) {
  const at::Tensor bias = meta_tensor(*call.input("self"));
  std::vector<at::Tensor> terms = {bias, meta_tensor(*call.input("vec1")), meta_tensor(*call.input("vec2"))};
  for (size_t k : {1, 2})
    TORCH_CHECK(terms[k].dim() == 1, "addr: Expected 1-D argument vec", k, ", but got ", terms[k].dim(), "-D");
  terms[0] = bias.expand({terms[1].size(0), terms[2].size(0)});
  terms[1] = terms[1].unsqueeze(1);
  const auto common = at::native::result_type(terms);
  // On a CPU an input of another dtype is first converted to dense memory.
  if (call.mesh.world().device_type() == c10::DeviceType::CPU) {
    for (at::Tensor& t : terms) t = t.to(common);
  }
  const at::Tensor result = at::addcmul(terms[0], terms[1], terms[2]);
  TORCH_CHECK(!call.written()[0] || c10::canCast(result.scalar_type(), bias.scalar_type()), "result type ",
              result.scalar_type(), " can't be cast to the desired output type ", bias.scalar_type());
  return metas_of({result});
}

// A rank may have nothing to multiply although the whole tensor has. Then ATen multiplies the bias by the unconverted
// beta, and rejects 1.0 with integers, which it converts otherwise.
void biased_local(const LocalCall& local, torch::jit::Stack& stack) {
  const at::Tensor& bias = stack[stack.size() - local.op.schema().arguments().size()].toTensor();
  if (c10::isIntegralType(bias.scalar_type(), /*includeBool=*/false)) {
    Arguments args(local.op, stack);
    const c10::Scalar beta = args["beta"].toScalar();
    if (beta.isFloatingPoint()) args.set("beta", c10::Scalar(beta.toLong()));
  }
  local.op.callBoxed(stack);
}

// Without columns, ATen's addmv returns a bias of one element unchanged.
void addmv_local(const LocalCall& local, torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  args.set("self", args.tensor("self").expand({args.tensor("mat").size(0)}));
  local.op.callBoxed(stack);
}

}  // namespace

const RuleFamily matmul_rules("matmul", [](RuleRegistry& registry) {
  for (const Product& product : kProducts) {
    OpRule rule = factor_op(einsum_rule(product.equation));
    rule.value_free = {"beta", "alpha"};
    const std::string op = product.op;
    if (op == "aten::dot" || op == "aten::vdot") rule.metas = dot_metas;
    if (op == "aten::addr") rule.metas = addr_metas;
    if (op == "aten::addbmm") rule.metas = addbmm_metas;
    if (op == "aten::addmm" || op == "aten::addbmm" || op == "aten::baddbmm") {
      rule.local = biased_local;
      rule.local_calls_operator = true;
    }
    if (op == "aten::addmv") rule.local = addmv_local;
    registry.add(op, std::move(rule));
  }
});

}  // namespace dtensor::internal
