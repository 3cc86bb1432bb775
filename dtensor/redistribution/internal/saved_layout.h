// Saves a value, or a layout, in autograd's context, for backward.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "plan/spec.h"

namespace dtensor::internal {

// A holder, since contexts store only IValues.
template <typename T>
struct Saved : torch::CustomClassHolder {
  explicit Saved(T saved) : value(std::move(saved)) {}
  const T value;
};

template <typename T>
void save_for_backward(torch::autograd::AutogradContext* ctx, T value) {
  ctx->saved_data["dtensor"] = c10::IValue::make_capsule(c10::make_intrusive<Saved<T>>(std::move(value)));
}
template <typename T>
T saved_for_backward(torch::autograd::AutogradContext* ctx) {
  return static_cast<const Saved<T>&>(*ctx->saved_data.at("dtensor").toCapsule()).value;
}

struct SavedLayout {
  SpecPtr spec;
  Placements placements;
};

}  // namespace dtensor::internal
