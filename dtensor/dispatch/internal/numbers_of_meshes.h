// Tensors without dims on other meshes than the tensors they are used with, such as the norm of all gradients of a
// pipeline whose stages have their own meshes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "absl/types/span.h"
#include "dtensor/dispatch/op_info.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

// The inputs of a call, as Inputs of call_inputs.h.
struct InputsOfMeshes {
  const OpInfo& info;
  absl::Span<at::Tensor> tensors;
  absl::Span<const uint16_t> args;
  std::function<std::string(size_t)> name_of;  // name of the argument of input k
};

// Brings the inputs to one mesh, and returns it: that of the inputs with dims or written inputs, or, if there is none,
// one over all of their ranks. Inputs from another mesh are replicated, in as few collectives as possible, none where
// its ranks have the value. In backward the same holds for an input with dims that is replicated on more ranks: the
// gradient of a tensor that was moved to them. Errors (c10::Error): inputs with dims on several meshes, or inputs of
// several worlds; the text names the arguments, the meshes and their ranks.
DeviceMesh bring_to_one_mesh(const InputsOfMeshes& in);

}  // namespace dtensor::internal
