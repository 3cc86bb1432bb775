// The operators that have typed kernels, as models call them often: a call takes neither a stack nor boxed arguments
// (dispatch/internal/typed_kernels.h, and for views also views/view_functions.cc).
//
// An operator may be added if it takes tensors, numbers and lists of ints, and returns one tensor: the first that it
// takes, if it writes to that, else a new one. Not if it has a rule with a `local` that does not set
// OpRule::local_calls_operator, or no rule: its calls would all take the boxed kernel. If it has a handler, too, that
// must leave a call to the rule by what keys of decisions have (norm.cc does).
#pragma once

#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/norm_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>

namespace dtensor::internal {

template <typename... Ops>
struct Operators {};

using TypedComputations =
    Operators<at::_ops::add_Tensor, at::_ops::add_Scalar, at::_ops::add__Tensor, at::_ops::add__Scalar,
              at::_ops::sub_Tensor, at::_ops::sub__Tensor, at::_ops::mul_Tensor, at::_ops::mul_Scalar,
              at::_ops::mul__Tensor, at::_ops::mul__Scalar, at::_ops::div_Tensor, at::_ops::div_Scalar,
              at::_ops::div__Tensor, at::_ops::div__Scalar, at::_ops::addcmul_, at::_ops::addcdiv_,
              at::_ops::lerp__Scalar, at::_ops::relu, at::_ops::relu_, at::_ops::sigmoid, at::_ops::tanh, at::_ops::exp,
              at::_ops::neg, at::_ops::sqrt, at::_ops::rsqrt, at::_ops::pow_Tensor_Scalar, at::_ops::gelu,
              at::_ops::silu, at::_ops::threshold_backward, at::_ops::sigmoid_backward, at::_ops::tanh_backward,
              at::_ops::gelu_backward, at::_ops::_unsafe_view, at::_ops::mm, at::_ops::bmm, at::_ops::addmm,
              at::_ops::sum, at::_ops::sum_dim_IntList, at::_ops::mean, at::_ops::mean_dim, at::_ops::norm_Scalar,
              at::_ops::linalg_vector_norm, at::_ops::detach>;

// Those that autograd tracks as views. Each has all elements of its base, which a rank's part of it shares.
using TypedViews = Operators<at::_ops::view, at::_ops::expand, at::_ops::alias, at::_ops::t, at::_ops::transpose_int,
                             at::_ops::permute, at::_ops::unsqueeze>;

}  // namespace dtensor::internal
