// Makes the result of a view operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>

#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

// How a view was taken: `args` with the base among them.
struct ViewCall {
  c10::OperatorHandle op;
  c10::ArrayRef<c10::IValue> args;
  size_t base_arg = 0;  // index of the base in args
  size_t result = 0;    // index of the view among the operator's results
  Placements computed;  // the layout of the base in which the view was computed
  // Writes the view's present values to its local tensors, whose contents are undefined before; may communicate. Null:
  // the operator is called again.
  std::function<void(const at::Tensor& base)> read = nullptr;
};

// A view of the tensor in `call`. `offset`: where it begins in the memory of that tensor, in its own elements. It is a
// copied view (copied_view.h) if `locals` do not share the base's memory, or if `moved` is set (an abstract world has
// no locals).
at::Tensor make_view_of(const ViewCall& call, SpecPtr spec, RankTensors locals, int64_t offset, bool moved);

}  // namespace dtensor::internal
