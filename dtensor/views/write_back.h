// Writes to copied views reach their bases: each rank stores the elements of a base that it holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace dtensor::internal {

// Call before `op` writes to `t`, whose memory is a copied view's.
// Error (c10::NotImplementedError): the write could not reach the base, and the two would diverge.
void check_can_write_back(const at::Tensor& t, std::string_view op);

// Call after `op` wrote to the local tensors of `t`: records the write, and writes back to the base of a copied view,
// which may communicate.
void note_write(const at::Tensor& t, std::string_view op);

}  // namespace dtensor::internal
