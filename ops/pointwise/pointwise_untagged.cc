// Elementwise operators that ATen does not tag as such, or whose results have other strides. Where ATen has no meta
// kernel either, their metadata is computed here.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sum.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "ops/pointwise/pointwise.h"
#include "ops/support/meta_tensor.h"
#include "propagation/rule_registry.h"
#include "propagation/shape_inference.h"

namespace dtensor::internal {
namespace {

OutputMetas log_sigmoid_metas(const OpCall& call) {
  const auto dtype = call.inputs[0]->dtype();
  return contiguous_metas(call.inputs[0]->sizes(), {dtype, dtype});
}

// Memory order of the first input, if that has all elements.
OutputMetas prelu_metas(const OpCall& call) {
  OutputMetas metas = infer_elementwise(call);
  TensorMeta& result = *metas.tensors[0];
  const bool all = call.inputs[0]->sizes() == result.sizes;
  result.strides = all ? in_own_memory(call.inputs[0]->meta()).strides : row_major_strides(result.sizes);
  return metas;
}

// other - self
OutputMetas rsub_metas(const OpCall& call) {
  OpCall turned = call;
  std::swap(turned.inputs.at(0), turned.inputs.at(1));
  OutputMetas metas = infer_elementwise(call);
  metas.tensors[0]->strides = elementwise_strides(turned);
  return metas;
}

// The angles of complex numbers are computed as complex numbers, whose real parts are copied.
OutputMetas angle_metas(const OpCall& call) {
  OutputMetas metas = infer_elementwise(call);
  if (c10::isComplexType(call.inputs[0]->dtype()))
    metas.tensors[0]->strides = row_major_strides(call.inputs[0]->sizes());
  return metas;
}

// A sum over an extra dim of p gammas. ATen's composite reads values, which meta tensors do not have.
OutputMetas mvlgamma_metas(const OpCall& call) {
  const at::Tensor self = meta_tensor(*call.input("self"));
  const bool integers = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const auto dtype = integers ? c10::get_default_dtype_as_scalartype() : self.scalar_type();
  const at::Tensor steps = at::empty({std::max<int64_t>(call.get_int("p"), 0)}, self.options().dtype(dtype));
  return metas_of({at::sum(at::add(steps, self.unsqueeze(-1)), -1)});
}

OpRule with_metas(OpRule rule, std::function<OutputMetas(const OpCall&)> metas) {
  rule.metas = std::move(metas);
  return rule;
}

OpRule log_sigmoid_forward() {
  OpRule rule = with_metas(pointwise_op(), log_sigmoid_metas);
  // The second result is scratch space for backward; on CUDA it is empty, which no layout derived from the input
  // describes.
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    const at::Tensor self = stack[0].toTensor();
    call.op.callBoxed(stack);
    if (stack[1].toTensor().sizes() != self.sizes()) stack[1] = at::empty_like(self);
  };
  return rule;
}

}  // namespace

const RuleFamily pointwise_untagged_rules("pointwise_untagged", [](RuleRegistry& registry) {
  registry.add("aten::leaky_relu", pointwise_op());
  registry.add("aten::polar", with_metas(pointwise_op(), infer_elementwise));
  registry.add("aten::complex", with_metas(pointwise_op({{{"real"}, {"imag"}}}), infer_elementwise));
  registry.add("aten::hardswish", with_metas(pointwise_op(), infer_elementwise));
  registry.add("aten::_prelu_kernel", with_metas(pointwise_op(), prelu_metas));
  registry.add("aten::_prelu_kernel_backward", with_metas(pointwise_op({{{"grad_output"}}}), infer_elementwise));
  for (const char* op : {"aten::hardswish_backward", "aten::hardtanh_backward", "aten::hardsigmoid_backward",
                         "aten::log_sigmoid_backward", "aten::native_dropout_backward", "aten::_masked_scale",
                         "aten::rrelu_with_noise_backward", "aten::mish_backward"}) {
    const bool scaled = std::string(op) == "aten::_masked_scale";
    registry.add(op, with_metas(pointwise_op({{{scaled ? "self" : "grad_output"}}}), infer_elementwise));
  }
  registry.add("aten::_conj_physical", with_metas(pointwise_op({{{"self"}}}), infer_elementwise));
  registry.add("aten::log_sigmoid_forward", log_sigmoid_forward());
  registry.add("aten::rsub.Tensor",
               with_metas(pointwise_op({{{"self"}, {"other"}}, PartialSemantics::kRing}), rsub_metas));
  registry.add("aten::angle", with_metas(pointwise_op(), angle_metas));
  registry.add("aten::floor_divide", with_metas(pointwise_op(), infer_elementwise));
  registry.add("aten::mvlgamma", with_metas(pointwise_op(), mvlgamma_metas));
});

}  // namespace dtensor::internal
