// Differentiable redistribution under the name of its cause: the one autograd function behind redistribute(),
// redistribute_many(), and what the library redistributes where gradients flow.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/redistribute_options.h"
#include "plan/layout.h"

namespace dtensor {

// Each tensor in its layout of `to`, by normalised placements on a mesh of its world; one that is there already is
// given back itself. The gradients come back to where the tensors were, Partial as Replicate, also in as few
// collectives as can be.
std::vector<at::Tensor> redistribute_as(at::TensorList tensors, c10::ArrayRef<Layout> to, const CommCause& cause,
                                        const RedistributeOptions& options = {});
// Of one tensor, on its mesh.
at::Tensor redistribute_as(const at::Tensor& tensor, const Placements& placements, const CommCause& cause,
                           const RedistributeOptions& options = {});

// full_tensor(), whose gradient gets normalised `grad_placements`; those of `tensor` by default, Partial as Replicate.
// Error (NotImplementedError): this process has no part of it.
at::Tensor gather_whole(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// A gradient of a distributed tensor. One that is plain, since the user gave it, counts as replicated; differentiable.
at::Tensor distributed_gradient(const at::Tensor& gradient, const DeviceMesh& mesh);

// The user asked for it by calling `function`.
CommCause explicit_cause(std::string function);

}  // namespace dtensor
