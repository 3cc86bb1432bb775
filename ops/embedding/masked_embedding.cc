#include "ops/embedding/masked_embedding.h"

#include "ops/embedding/kernel_arguments.h"
#include "ops/embedding/mask_buffer.h"
#include "ops/kernels/cpu/embedding.h"

#ifdef DTENSOR_HAVE_CUDA
#include "comm/cuda/run_on_cuda.h"
#include "ops/kernels/cuda/embedding.h"
#endif

namespace dtensor::internal {
namespace {

// Whether the kernels take a gradient; if not, ATen's operators say what is wrong with it, if anything is.
bool kernels_take(const at::Tensor& grad, const at::Tensor& ids, int64_t num_own_rows) {
  return has_element_type(grad.scalar_type()) && has_own_values(grad) && can_sort(ids, num_own_rows) &&
         grad.device() == ids.device() && grad.dim() == ids.dim() + 1 &&
         grad.sizes().slice(0, ids.dim()) == ids.sizes();
}

#ifdef DTENSOR_HAVE_CUDA
cuda::EmbeddingIds cuda_ids(const at::Tensor& contiguous_ids) {
  return {contiguous_ids.const_data_ptr(), contiguous_ids.scalar_type() == at::kInt, contiguous_ids.numel()};
}

at::Tensor cuda_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  const at::Tensor table = part.contiguous(), flat_ids = ids.contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(part.size(1));
  at::Tensor out = part.new_empty(sizes);
  run_on_cuda("masked_embedding", part.device(), [&](void* stream) {
    return cuda::masked_embedding(table.const_data_ptr(), cuda_ids(flat_ids), {offset, part.size(0), num_rows},
                                  part.size(1) * static_cast<int64_t>(part.element_size()), out.mutable_data_ptr(),
                                  stream);
  });
  return out;
}

at::Tensor cuda_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const TableRows& rows) {
  const at::Tensor contiguous_grad = grad.contiguous(), flat_ids = ids.contiguous();
  at::Tensor out = grad.new_empty({rows.size, grad.size(-1)});
  const cuda::EmbeddingGradient g{contiguous_grad.const_data_ptr(),
                                  element_type(grad.scalar_type()),
                                  grad.size(-1),
                                  cuda_ids(flat_ids),
                                  rows,
                                  out.mutable_data_ptr()};
  run_on_cuda("masked_embedding_backward", grad.device(), [&](void* stream) {
    const at::Tensor scratch = memory_to_sort(flat_ids, rows, "masked_embedding_backward");
    return cuda::masked_embedding_backward(g, scratch.mutable_data_ptr(), scratch.numel(), stream);
  });
  return out;
}
#endif

}  // namespace

at::Tensor fused_masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  if (has_own_values(part) && has_index_type(ids) && part.device() == ids.device()) {
    if (part.is_cpu()) return cpu::masked_embedding(part, ids, offset, num_rows);
#ifdef DTENSOR_HAVE_CUDA
    if (part.is_cuda()) return cuda_embedding(part, ids, offset, num_rows);
#endif
  }
  return masked_embedding(part, ids, offset, num_rows);
}

at::Tensor fused_masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                           int64_t num_own_rows, int64_t num_rows, int64_t padding_idx) {
  if (kernels_take(grad, ids, num_own_rows)) {
    if (grad.is_cpu()) {
      return cpu::masked_embedding_backward(grad, ids, offset, num_own_rows, num_rows, padding_idx);
    }
#ifdef DTENSOR_HAVE_CUDA
    if (grad.is_cuda()) return cuda_embedding_backward(grad, ids, {offset, num_own_rows, num_rows, padding_idx});
#endif
  }
  return masked_embedding_backward(grad, ids, offset, num_own_rows, padding_idx, /*scale_grad_by_freq=*/false);
}

}  // namespace dtensor::internal
