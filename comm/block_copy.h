// Copies blocks from one strided tensor into another: the basic operation of every exchange.
//
//   copy_block(shard, whole, {.from = {0, 0}, .to = {4, 0}, .sizes = {2, 8}});  // rows 0-1 become rows 4-5
//
// Between CPU tensors of one dtype no Tensor object is made, so that a block of a few elements costs some tens of
// nanoseconds. Below autograd: versions and gradients are left alone. Thread-safe on disjoint memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>

#include <cstdint>

#include "placement/geometry.h"

namespace dtensor::internal {

// Whether a CPU tensor's elements lie where its data pointer and strides say. No conjugate or negative views.
inline bool is_plain_memory(const at::Tensor& t) {
  // DispatchKey::CPU is that of dense tensors: sparse, MKL-DNN and quantized ones have others.
  constexpr c10::DispatchKeySet kNotAsStored(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  const c10::DispatchKeySet keys = t.key_set();
  return keys.has_all(c10::DispatchKeySet(c10::DispatchKey::CPU)) && !keys.has_any(kNotAsStored);
}
int64_t numel_of(const Shape& sizes);

// Writes the block of `from` that begins at block.from over that of `to` at block.to; devices may differ.
// REQUIRES: equal dtypes, as many dims as the block has, the block lies inside both tensors, whose memory does not
// overlap.
void copy_block(const at::Tensor& from, const at::Tensor& to, const Block& block);

// Makes the block of `to` zeros. REQUIRES: as above.
void clear_block(const at::Tensor& to, const Block& block);

// The first element of the block of `t` at `offsets`, if its elements are row-major without gaps in plain memory of a
// CPU; else null. REQUIRES: as above.
const char* dense_block(const at::Tensor& t, const Shape& offsets, const Shape& sizes);
// The same in memory of any device, which must be `device`.
const char* dense_block_on(const at::Tensor& t, const Shape& offsets, const Shape& sizes, c10::Device device);

// A view of `t`. REQUIRES: as above.
at::Tensor block_view(const at::Tensor& t, const Shape& offsets, const Shape& sizes);

}  // namespace dtensor::internal
