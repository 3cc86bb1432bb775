// Forward-mode AD: autograd's checks on a tensor and its tangent. The formulas themselves are ordinary operators.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/new_empty_strided.h>
#include <torch/csrc/autograd/forward_grad.h>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Whether the memory of two tensors has the same size, so that a view of one can be taken of the other. Distributed
// tensors only have the memory of their parts.
void has_same_storage_numel(const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();  // the tangent
  for (const at::Tensor* t : {&self, &other}) {
    if (is_dtensor(*t)) continue;
    throw_plain_beside_distributed("forward-mode AD", t == &self ? "tangent" : "primal", *t,
                                   spec_of(t == &self ? other : self)->mesh());
  }
  stack.emplace_back(self.numel() == other.numel());
}

// Zeros of the dtype of `self` with the layout of `other`: a tangent with another layout is copied into them.
void zeros_with_meta_of(const c10::OperatorHandle&, Stack& stack) {
  const int64_t batch_dims = torch::jit::pop(stack).toInt();  // of vmap, the first dims of `self`; `other` has none
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  at::DimVector sizes(other.sizes()), strides(other.strides());
  int64_t stride = other.numel();
  for (int64_t dim = batch_dims - 1; dim >= 0; --dim) {
    sizes.insert(sizes.begin(), self.size(dim));
    strides.insert(strides.begin(), stride);
    stride *= self.size(dim);
  }
  stack.emplace_back(other.new_empty_strided(sizes, strides, other.options().dtype(self.scalar_type())).zero_());
}

// LibTorch uses meta tensors to get the shape of a product with a zero tangent.
void to_copy(const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, 7);  // self, dtype, layout, device, ...
  const bool to_meta = args[3].isDevice() && args[3].toDevice().is_meta();
  const at::Tensor self = args[0].toTensor();
  if (!to_meta || spec_of(self)->mesh().world().is_meta()) return dispatch_by_rule(op, stack);
  const auto dtype = args[1].isNone() ? self.scalar_type() : args[1].toScalarType();
  torch::jit::drop(stack, 7);
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr) {
    const Spec& spec = *spec_of(self);
    TensorMeta meta = in_own_memory(spec.meta());
    meta.dtype = dtype;
    stack.emplace_back(make_dtensor(Spec::get(spec.mesh().meta(), spec.placements(), meta), {}));
    return;
  }
  LocalGuard guard;
  stack.emplace_back(
      at::empty_strided(self.sizes(), self.strides(), at::TensorOptions().dtype(dtype).device(at::kMeta)));
}

}  // namespace

const RuleFamily forward_mode_handlers("forward_mode", [](RuleRegistry& registry) {
  registry.add_handler("aten::_has_same_storage_numel", has_same_storage_numel);
  registry.add_handler("aten::_to_copy", to_copy);
  registry.add_handler("aten::_new_zeros_with_same_feature_meta", zeros_with_meta_of);
});

}  // namespace dtensor::internal
