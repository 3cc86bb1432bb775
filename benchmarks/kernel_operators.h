// The operators of the library's kernels on plain tensors, by LibTorch's dispatcher.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>

namespace dtensor::benchmarks {

template <typename Signature>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// ops/embedding/masked_embedding.h
inline auto masked_embedding() {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t)>(
      "dtensor::masked_embedding");
}
inline auto masked_embedding_backward() {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, int64_t, int64_t, int64_t, int64_t)>(
      "dtensor::masked_embedding_backward");
}

// ops/loss/cross_entropy_part.h
inline auto cross_entropy_part() {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, int64_t,
                                int64_t, int64_t, double)>("dtensor::cross_entropy_part");
}
inline auto cross_entropy_part_backward() {
  return operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                const std::optional<at::Tensor>&, int64_t, int64_t, int64_t, double)>(
      "dtensor::cross_entropy_part_backward");
}

}  // namespace dtensor::benchmarks
