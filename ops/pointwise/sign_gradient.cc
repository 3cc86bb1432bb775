// The derivative of sgn() of real numbers, zero. ATen's formula gives it as a plain tensor without memory (a
// ZeroTensor), which no operator accepts next to a distributed one; abs() and norms of order one need it in their
// second derivative.
#include <ATen/ops/sgn.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {
namespace {

struct SgnFn : torch::autograd::Function<SgnFn> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& self) { return at::sgn(self); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0].defined() ? at::zeros_like(grads[0]) : at::Tensor()};
  }
};

bool has_zero_gradient(const at::Tensor& self) {
  return at::GradMode::is_enabled() && self.requires_grad() && !self.is_complex();
}

at::Tensor sgn(c10::DispatchKeySet keys, const at::Tensor& self) {
  return has_zero_gradient(self) ? SgnFn::apply(self) : at::_ops::sgn::redispatch(keys & kBelowThatKey, self);
}

at::Tensor& sgn_(c10::DispatchKeySet keys, at::Tensor& self) {
  return has_zero_gradient(self) ? self.copy_(SgnFn::apply(self))
                                 : at::_ops::sgn_::redispatch(keys & kBelowThatKey, self);
}

}  // namespace
}  // namespace dtensor::internal

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) {
  m.impl("sgn", &dtensor::internal::sgn);
  m.impl("sgn_", &dtensor::internal::sgn_);
}
