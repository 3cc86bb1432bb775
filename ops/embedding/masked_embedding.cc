#include "ops/embedding/masked_embedding.h"

#include <limits>

#include "ops/embedding/mask_buffer.h"
#include "ops/kernels/cpu/embedding.h"

#ifdef DTENSOR_HAVE_CUDA
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "ops/kernels/cuda/embedding.h"
#include "ops/support/cuda_stream.h"
#endif

namespace dtensor::internal {
namespace {

bool has_own_values(const at::Tensor& t) { return !t.is_conj() && !t.is_neg(); }

bool has_index_type(const at::Tensor& ids) { return ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt; }

// Whether the kernels take a gradient; if not, ATen's operators say what is wrong with it, if anything is.
bool kernels_take(const at::Tensor& grad, const at::Tensor& ids, int64_t num_own_rows) {
  const auto dtype = grad.scalar_type();
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16) &&
         has_own_values(grad) && has_index_type(ids) && grad.device() == ids.device() && ids.numel() <= kMost &&
         num_own_rows < kMost && grad.dim() == ids.dim() + 1 && grad.sizes().slice(0, ids.dim()) == ids.sizes();
}

#ifdef DTENSOR_HAVE_CUDA
cuda::EmbeddingIds cuda_ids(const at::Tensor& contiguous_ids) {
  return {contiguous_ids.const_data_ptr(), contiguous_ids.scalar_type() == at::kInt, contiguous_ids.numel()};
}

at::Tensor cuda_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  const c10::DeviceGuard device(part.device());
  const at::Tensor table = part.contiguous(), flat_ids = ids.contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(part.size(1));
  at::Tensor out = part.new_empty(sizes);
  const char* error =
      cuda::masked_embedding(table.const_data_ptr(), cuda_ids(flat_ids), {offset, part.size(0), num_rows},
                             part.size(1) * static_cast<int64_t>(part.element_size()), out.mutable_data_ptr(),
                             current_cuda_stream(part.device()));
  TORCH_CHECK(error == nullptr, "masked_embedding: ", error);
  return out;
}

cuda::GradientType gradient_type(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return cuda::GradientType::kHalf;
    case at::kBFloat16:
      return cuda::GradientType::kBFloat16;
    case at::kFloat:
      return cuda::GradientType::kFloat;
    default:
      return cuda::GradientType::kDouble;
  }
}

at::Tensor cuda_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, const TableRows& rows) {
  const c10::DeviceGuard device(grad.device());
  const at::Tensor contiguous_grad = grad.contiguous(), flat_ids = ids.contiguous();
  at::Tensor out = grad.new_empty({rows.size, grad.size(-1)});
  const cuda::EmbeddingGradient g{contiguous_grad.const_data_ptr(),
                                  gradient_type(grad.scalar_type()),
                                  grad.size(-1),
                                  cuda_ids(flat_ids),
                                  rows,
                                  out.mutable_data_ptr()};
  size_t bytes = 0;
  const char* error = cuda::masked_embedding_scratch(g, bytes);
  TORCH_CHECK(error == nullptr, "masked_embedding_backward: ", error);
  const at::Tensor scratch = at::empty({static_cast<int64_t>(bytes)}, grad.options().dtype(at::kByte));
  error = cuda::masked_embedding_backward(g, scratch.mutable_data_ptr(), bytes, current_cuda_stream(grad.device()));
  TORCH_CHECK(error == nullptr, "masked_embedding_backward: ", error);
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
