// Saves a layout in autograd's context, for the backward of conversions between plain and distributed tensors.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "plan/spec.h"

namespace dtensor::internal {

// A holder, since contexts store only IValues.
struct SavedLayout : torch::CustomClassHolder {
  SpecPtr spec;
  Placements placements;
};

inline void save_layout(torch::autograd::AutogradContext* ctx, SpecPtr spec, Placements placements) {
  auto saved = c10::make_intrusive<SavedLayout>();
  saved->spec = std::move(spec);
  saved->placements = std::move(placements);
  ctx->saved_data["dtensor"] = c10::IValue::make_capsule(saved);
}

inline c10::intrusive_ptr<SavedLayout> saved_layout(torch::autograd::AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedLayout>(ctx->saved_data.at("dtensor").toCapsule());
}

}  // namespace dtensor::internal
