#include "ops/embedding/masked_embedding_bag.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "ops/embedding/kernel_arguments.h"
#include "ops/kernels/cpu/embedding_bag.h"

#ifdef DTENSOR_HAVE_CUDA
#include "comm/cuda/run_on_cuda.h"
#include "ops/kernels/cuda/embedding_bag.h"
#endif

namespace dtensor::internal {
namespace {

#ifdef DTENSOR_HAVE_CUDA
constexpr bool kHasCudaKernels = true;
#else
constexpr bool kHasCudaKernels = false;
#endif

// Whether the kernels take `values` and integers `a` and `b`; if not, ATen's operators say what is wrong with them, if
// anything is. `weights` may be undefined.
bool kernels_take_bags(const at::Tensor& values, const at::Tensor& a, const at::Tensor& b, const at::Tensor& weights) {
  const bool has_kernels = values.is_cpu() || (kHasCudaKernels && values.is_cuda());
  const bool weights_fit =
      !weights.defined() || (weights.scalar_type() == values.scalar_type() && weights.device() == values.device() &&
                             has_own_values(weights) && weights.sizes() == a.sizes());
  return has_kernels && weights_fit && has_element_type(values.scalar_type()) && has_own_values(values) &&
         values.dim() == 2 && has_index_type(a) && has_index_type(b) && a.dim() == 1 && a.device() == values.device() &&
         b.device() == values.device();
}

c10::ScalarType index_type(const at::Tensor& a, const at::Tensor& b) {
  return c10::promoteTypes(a.scalar_type(), b.scalar_type());
}

// Contiguous, so that a kernel can read it; undefined tensors stay so.
at::Tensor readable(const at::Tensor& t) { return t.defined() ? t.contiguous() : t; }
at::Tensor readable(const at::Tensor& t, c10::ScalarType type) { return t.defined() ? t.to(type).contiguous() : t; }

const void* memory_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

}  // namespace

BagResults fused_masked_embedding_bag(const at::Tensor& part, const Bags& bags, const TableRows& rows) {
  if (!kernels_take_bags(part, bags.ids, bags.offsets, bags.weights)) return masked_embedding_bag(part, bags, rows);
  const auto type = index_type(bags.ids, bags.offsets);
  const at::Tensor table = readable(part), ids = readable(bags.ids, type), offsets = readable(bags.offsets, type),
                   weights = readable(bags.weights);
  const int64_t size = bags.size(), features = part.size(1);
  BagResults r;
  r.result = part.new_empty({size, features});
  r.bag_of_id = size > 0 ? at::empty({ids.numel()}, ids.options()) : at::zeros({ids.numel()}, ids.options());
  r.bag_size = at::empty({size}, ids.options());
  r.max_ids = bags.mode == kBagMax ? at::empty({size, features}, ids.options()) : at::empty({0}, ids.options());
  BagLookup b;
  b.part = memory_of(table), b.type = element_type(part.scalar_type()), b.features = features, b.rows = rows;
  b.mode = static_cast<EmbeddingBagMode>(bags.mode);
  b.are_int32 = type == at::kInt, b.ids = memory_of(ids), b.offsets = memory_of(offsets),
  b.weights = memory_of(weights);
  b.num_ids = ids.numel(), b.num_bags = size;
  b.result = r.result.mutable_data_ptr(), b.bag_of_id = r.bag_of_id.mutable_data_ptr();
  b.bag_size = r.bag_size.mutable_data_ptr(), b.max_ids = r.max_ids.mutable_data_ptr();
  if (part.is_cpu()) cpu::masked_embedding_bag(b);
#ifdef DTENSOR_HAVE_CUDA
  if (part.is_cuda())
    run_on_cuda("masked_embedding_bag", part.device(),
                [&](void* stream) { return cuda::masked_embedding_bag(b, stream); });
#endif
  return r;
}

at::Tensor fused_masked_embedding_bag_backward(const at::Tensor& grad, const BagsOfIds& bags, const TableRows& rows) {
  if (!kernels_take_bags(grad, bags.ids, bags.bag_of_id, bags.weights) || !can_sort(bags.ids, rows.size) ||
      bags.bag_of_id.sizes() != bags.ids.sizes())
    return masked_embedding_bag_backward(grad, bags, rows);
  const auto type = index_type(bags.ids, bags.bag_of_id);
  const at::Tensor of_bags = readable(grad), ids = readable(bags.ids, type), bag_of_id = readable(bags.bag_of_id, type),
                   weights = readable(bags.weights);
  const at::Tensor sizes = bags.mode == kBagMean ? readable(bags.bag_size, type) : at::Tensor(),
                   max_ids = bags.mode == kBagMax ? readable(bags.max_ids, type) : at::Tensor();
  at::Tensor out = grad.new_empty({rows.size, grad.size(1)});
  BagGradient g;
  g.grad = memory_of(of_bags), g.type = element_type(grad.scalar_type()), g.features = grad.size(1), g.rows = rows;
  g.are_int32 = type == at::kInt, g.ids = memory_of(ids), g.bag_of_id = memory_of(bag_of_id), g.num_ids = ids.numel();
  g.weights = memory_of(weights), g.bag_size = memory_of(sizes), g.max_ids = memory_of(max_ids);
  g.out = out.mutable_data_ptr();
  if (grad.is_cpu()) cpu::masked_embedding_bag_backward(g);
#ifdef DTENSOR_HAVE_CUDA
  if (grad.is_cuda())
    run_on_cuda("masked_embedding_bag_backward", grad.device(), [&](void* stream) {
      const at::Tensor scratch = memory_to_sort(ids, rows, "masked_embedding_bag_backward");
      return cuda::masked_embedding_bag_backward(g, scratch.mutable_data_ptr(), scratch.numel(), stream);
    });
#endif
  return out;
}

at::Tensor fused_masked_embedding_bag_weights_backward(const at::Tensor& grad, const at::Tensor& part,
                                                       const at::Tensor& ids, const at::Tensor& bag_of_id,
                                                       const TableRows& rows) {
  if (!kernels_take_bags(grad, ids, bag_of_id, {}) || part.scalar_type() != grad.scalar_type() ||
      part.device() != grad.device() || !has_own_values(part) || bag_of_id.sizes() != ids.sizes())
    return masked_embedding_bag_weights_backward(grad, part, ids, bag_of_id, rows);
  const auto type = index_type(ids, bag_of_id);
  const at::Tensor of_bags = readable(grad), table = readable(part), own_ids = readable(ids, type),
                   own_bags = readable(bag_of_id, type);
  at::Tensor out = grad.new_empty({ids.numel()});
  BagWeightsGradient g;
  g.grad = memory_of(of_bags), g.part = memory_of(table), g.type = element_type(grad.scalar_type()),
  g.features = grad.size(1);
  g.rows = rows, g.are_int32 = type == at::kInt, g.ids = memory_of(own_ids), g.bag_of_id = memory_of(own_bags);
  g.num_ids = ids.numel(), g.out = out.mutable_data_ptr();
  if (grad.is_cpu()) cpu::masked_embedding_bag_weights_backward(g);
#ifdef DTENSOR_HAVE_CUDA
  if (grad.is_cuda())
    run_on_cuda("masked_embedding_bag_weights_backward", grad.device(),
                [&](void* stream) { return cuda::masked_embedding_bag_weights_backward(g, stream); });
#endif
  return out;
}

}  // namespace dtensor::internal
