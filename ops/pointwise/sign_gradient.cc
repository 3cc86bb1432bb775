// The derivative of sgn() of real numbers, zero. ATen's formula gives it as a plain tensor without memory (a
// ZeroTensor), which no operator accepts next to a distributed one, and which is no tangent of one; abs() and norms of
// order one need it in their second derivative.
#include <ATen/ops/_make_dual.h>
#include <ATen/ops/_unpack_dual.h>
#include <ATen/ops/sgn.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/forward_mode.h"

namespace dtensor::internal {
namespace {

struct SgnFn : torch::autograd::Function<SgnFn> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& self) { return at::sgn(self); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0].defined() ? at::zeros_like(grads[0]) : at::Tensor()};
  }
};

bool has_zero_derivative(const at::Tensor& self) {
  return !self.is_complex() && ((at::GradMode::is_enabled() && self.requires_grad()) || has_tangent(self));
}

at::Tensor with_zero_derivative(const at::Tensor& self) {
  if (!has_tangent(self)) return SgnFn::apply(self);
  const auto [value, tangent] = at::_unpack_dual(self, /*level=*/0);
  return at::_make_dual(at::sgn(value), at::zeros_like(tangent), /*level=*/0);
}

at::Tensor sgn(c10::DispatchKeySet keys, const at::Tensor& self) {
  return has_zero_derivative(self) ? with_zero_derivative(self) : at::_ops::sgn::redispatch(keys & kBelowThatKey, self);
}

at::Tensor& sgn_(c10::DispatchKeySet keys, at::Tensor& self) {
  return has_zero_derivative(self) ? self.copy_(with_zero_derivative(self))
                                   : at::_ops::sgn_::redispatch(keys & kBelowThatKey, self);
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("sgn", &dtensor::internal::sgn);
  m.impl("sgn_", &dtensor::internal::sgn_);
}
