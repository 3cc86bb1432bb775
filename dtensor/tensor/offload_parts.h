// Distributed tensors with parts in host memory of ranks on GPUs: what fully_shard() keeps there with `offload`.
// Operators on such tensors alone compute on the CPU, and what they and their communication give is in host memory,
// too. Where they meet tensors on GPUs, see dispatch/internal/on_one_device.h. All functions are below autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

// Whether the parts are in host memory although the ranks are on GPUs. REQUIRES: is_dtensor(t).
bool is_offloaded(const at::Tensor& t);

// `t` with copies of its parts in host memory, or on its ranks' GPUs; `t` itself if they are there, and where the ranks
// are on CPUs. REQUIRES: is_dtensor(t).
at::Tensor offload_parts(const at::Tensor& t);
at::Tensor load_parts(const at::Tensor& t);
// Moves the parts of leaf.grad() to host memory if those of the leaf are there.
void offload_gradient(const at::Tensor& leaf);

}  // namespace dtensor::internal
