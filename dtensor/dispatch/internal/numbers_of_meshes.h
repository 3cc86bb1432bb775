// Tensors without dims that lie on other meshes than what they are used with, as the norm of all gradients of a
// pipeline whose stages have meshes of their own. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/types/span.h"
#include "dtensor/dispatch/op_info.h"
#include "mesh/device_mesh.h"

namespace dtensor {

// The inputs of a call, as Inputs of call_inputs.h.
struct InputsOfMeshes {
  const OpInfo& info;
  absl::Span<at::Tensor> tensors;
  absl::Span<const uint16_t> args;
  std::function<std::string(size_t)> name_of;  // of the argument that input k is
};

// Brings the inputs to one mesh, and returns it: that of those which have dims or are written to, or, if there is none,
// one over all of their ranks. What comes from another mesh is replicated, in as few collectives as can be, none where
// its ranks have it. In backward so is what has dims and is replicated on more ranks: the gradient of what was taken to
// them. Errors (c10::Error): inputs with dims on several meshes, or inputs of several worlds; the text names the
// arguments, the meshes and their ranks.
DeviceMesh bring_to_one_mesh(const InputsOfMeshes& in);

}  // namespace dtensor
