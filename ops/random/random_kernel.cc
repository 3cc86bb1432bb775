#include "ops/random/random_kernel.h"

#include <ATen/ops/empty_like.h>
#ifdef DTENSOR_HAVE_CUDA
#include <ATen/ops/empty.h>

#include <algorithm>

#include "comm/cuda/run_on_cuda.h"
#include "comm/graph_capture.h"
#include "ops/kernels/cuda/philox.h"
#endif

namespace dtensor::internal {
namespace {

void fill_cpu(const at::Tensor& part, const cpu::GlobalOffsets& offsets, const RandomDraw& draw, uint64_t key,
              uint64_t stream, const at::Tensor& probabilities) {
  if (probabilities.defined()) {
    cpu::philox_bernoulli(part, probabilities, offsets, key);
  } else {
    cpu::philox_fill(part, offsets, draw, key, stream);
  }
}

#ifdef DTENSOR_HAVE_CUDA
cuda::PhiloxType type_of(c10::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return cuda::PhiloxType::kBool;
    case at::kByte:
      return cuda::PhiloxType::kByte;
    case at::kChar:
      return cuda::PhiloxType::kChar;
    case at::kShort:
      return cuda::PhiloxType::kShort;
    case at::kInt:
      return cuda::PhiloxType::kInt;
    case at::kLong:
      return cuda::PhiloxType::kLong;
    case at::kHalf:
      return cuda::PhiloxType::kHalf;
    case at::kBFloat16:
      return cuda::PhiloxType::kBFloat16;
    case at::kFloat:
      return cuda::PhiloxType::kFloat;
    case at::kDouble:
      return cuda::PhiloxType::kDouble;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "random numbers are not implemented for '", dtype, "'");
  }
}

void fill_cuda(const at::Tensor& part, const cpu::GlobalOffsets& offsets, const RandomDraw& draw, uint64_t key,
               uint64_t stream, const at::Tensor& probabilities) {
  cuda::PhiloxPart p;
  TORCH_CHECK_NOT_IMPLEMENTED(part.dim() <= cuda::kPhiloxMaxDims, "random numbers on CUDA: at most ",
                              cuda::kPhiloxMaxDims, " dims, the tensor has ", part.dim());
  TORCH_CHECK_NOT_IMPLEMENTED(!is_capturing(part.device()),
                              "random numbers in a graph: every replay would give the same ones");
  int64_t length = 0;
  for (size_t d = 0; d < offsets.size(); ++d) {
    p.sizes[d] = static_cast<int64_t>(offsets[d].size());
    length += p.sizes[d];
  }
  // Pinned: the host does not wait for the copy. LibTorch keeps the memory until the stream has read it.
  const at::Tensor host = at::empty({length}, at::TensorOptions(at::kLong).pinned_memory(true));
  auto* next = host.mutable_data_ptr<int64_t>();
  for (const auto& of_dim : offsets) next = std::copy(of_dim.begin(), of_dim.end(), next);
  const at::Tensor table = host.to(part.device(), /*non_blocking=*/true);
  p.data = part.mutable_data_ptr();
  p.type = type_of(part.scalar_type());
  p.numel = part.numel();
  p.ndim = static_cast<int>(part.dim());
  p.offsets = length == 0 ? nullptr : table.const_data_ptr<int64_t>();
  run_on_cuda("philox_fill", part.device(), [&](void* cuda_stream) {
    return cuda::philox_fill(p, draw, key, stream,
                             probabilities.defined() ? probabilities.const_data_ptr<double>() : nullptr, cuda_stream);
  });
}
#endif

}  // namespace

void philox_fill_part(const at::Tensor& part, const cpu::GlobalOffsets& offsets, const RandomDraw& draw, uint64_t key,
                      uint64_t stream, const at::Tensor& probabilities) {
  if (!part.is_contiguous()) {
    const at::Tensor copy = at::empty_like(part, at::MemoryFormat::Contiguous);
    philox_fill_part(copy, offsets, draw, key, stream, probabilities);
    part.copy_(copy);
    return;
  }
#ifdef DTENSOR_HAVE_CUDA
  if (part.is_cuda()) return fill_cuda(part, offsets, draw, key, stream, probabilities);
#endif
  TORCH_CHECK_NOT_IMPLEMENTED(part.is_cpu(), "random numbers on ", part.device(),
                              ": this library was built without the CUDA toolkit, so it has kernels for the CPU only");
  fill_cpu(part, offsets, draw, key, stream, probabilities);
}

}  // namespace dtensor::internal
