#include "ops/loss/cross_entropy_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "ops/kernels/cpu/cross_entropy.h"
#include "ops/support/element_type.h"
#include "ops/support/meta_tensor.h"

#ifdef DTENSOR_HAVE_CUDA
#include "comm/cuda/run_on_cuda.h"
#include "ops/kernels/cuda/cross_entropy.h"
#endif

namespace dtensor::internal {
namespace {

at::Tensor plain_memory(const at::Tensor& t) { return t.resolve_neg().contiguous(); }

// As the kernels take them.
CrossEntropyArguments contiguous(const CrossEntropyArguments& args) {
  CrossEntropyArguments result{plain_memory(args.logits), plain_memory(args.target), {}, args.part};
  if (args.weight.defined()) result.weight = plain_memory(args.weight.to(widened(args.logits.scalar_type())));
  return result;
}

at::Tensor new_summaries(const CrossEntropyArguments& args) {
  const int numbers = summary_numbers(args.weight.defined(), args.has_probabilities(), args.part.label_smoothing);
  return args.logits.new_empty({numbers, args.logits.size(0)},
                               args.logits.options().dtype(widened(args.logits.scalar_type())));
}

#ifdef DTENSOR_HAVE_CUDA
cuda::CrossEntropyPart cuda_part(const CrossEntropyArguments& in) {
  const bool indices = !in.has_probabilities();
  return {in.logits.const_data_ptr(),
          element_type(in.logits.scalar_type()),
          indices ? in.target.const_data_ptr<int64_t>() : nullptr,
          indices ? nullptr : in.target.const_data_ptr(),
          in.weight.defined() ? in.weight.const_data_ptr() : nullptr,
          in.logits.size(0),
          in.part};
}

at::Tensor cuda_cross_entropy_part(const CrossEntropyArguments& in) {
  at::Tensor out = new_summaries(in);
  run_on_cuda("cross_entropy_part", in.logits.device(), [&](void* stream) {
    return cuda::cross_entropy_part(cuda_part(in), static_cast<int>(out.size(0)), out.mutable_data_ptr(), stream);
  });
  return out;
}

void cuda_cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max, const CrossEntropyArguments& in,
                                      const at::Tensor& out) {
  run_on_cuda("cross_entropy_part_backward", in.logits.device(), [&](void* stream) {
    return cuda::cross_entropy_part_backward(grad.const_data_ptr(), max.const_data_ptr(), cuda_part(in),
                                             out.mutable_data_ptr(), stream);
  });
}
#endif

}  // namespace

bool has_cross_entropy_kernel(c10::Device device, c10::ScalarType dtype) {
  if (!has_element_type(dtype)) return false;
#ifdef DTENSOR_HAVE_CUDA
  if (device.is_cuda()) return true;
#endif
  return device.is_cpu() || device.is_meta();
}

at::Tensor cross_entropy_part(const CrossEntropyArguments& args) {
  if (args.logits.is_meta()) return new_summaries(args);
  const CrossEntropyArguments in = contiguous(args);
#ifdef DTENSOR_HAVE_CUDA
  if (in.logits.is_cuda()) return cuda_cross_entropy_part(in);
#endif
  return cpu::cross_entropy_part({in.logits, in.target, in.weight, in.part});
}

at::Tensor cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max,
                                       const CrossEntropyArguments& args) {
  if (args.logits.is_meta()) return at::empty_like(args.logits, at::MemoryFormat::Contiguous);
  const CrossEntropyArguments in = contiguous(args);
  const at::Tensor grads = plain_memory(grad), sums = plain_memory(max), out = at::empty_like(in.logits);
#ifdef DTENSOR_HAVE_CUDA
  if (in.logits.is_cuda()) {
    cuda_cross_entropy_part_backward(grads, sums, in, out);
    return out;
  }
#endif
  cpu::cross_entropy_part_backward(grads, sums, {in.logits, in.target, in.weight, in.part}, out);
  return out;
}

at::Tensor differentiable_cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max,
                                                      const CrossEntropyArguments& args) {
  const auto dtype = widened(args.logits.scalar_type());
  CrossEntropyArguments wide = args;
  wide.logits = args.logits.to(dtype);
  if (args.has_probabilities()) wide.target = args.target.to(dtype);
  at::Tensor q;
  {
    const at::NoGradGuard constant;
    const at::Tensor ones = at::ones_like(max);
    q = cross_entropy_part_backward(at::stack({at::zeros_like(ones), ones}), max, wide);
  }
  at::Tensor shifted = wide.logits - max.unsqueeze(1), factors = grad;
  if (!args.has_probabilities()) {
    const at::Tensor ignored = args.target.eq(args.part.ignore_index);
    shifted = shifted.masked_fill(ignored.unsqueeze(1), -std::numeric_limits<double>::infinity());
    factors = grad.masked_fill(ignored, 0);
  }
  const at::Tensor result = factors[0].unsqueeze(1) * shifted.exp() + factors[1].unsqueeze(1) * q;
  return result.to(args.logits.scalar_type());
}

}  // namespace dtensor::internal
