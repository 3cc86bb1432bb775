// Differentiable redistribution with a named cause: the one autograd function behind redistribute(),
// redistribute_many(), and the library's own redistributions that need gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/redistribute_options.h"
#include "plan/layout.h"

namespace dtensor::internal {

// Redistributes each tensor to its layout in `to`: normalised placements on a mesh of its world; a tensor that has it
// already is returned itself. The gradients return to the layouts of the tensors, with Partial as Replicate, also in as
// few collectives as possible.
std::vector<at::Tensor> redistribute_as(at::TensorList tensors, c10::ArrayRef<Layout> to, const CommCause& cause,
                                        const RedistributeOptions& options = {});
// One tensor, on its mesh.
at::Tensor redistribute_as(const at::Tensor& tensor, const Placements& placements, const CommCause& cause,
                           const RedistributeOptions& options = {});

// full_tensor(), whose gradient gets normalised `grad_placements`; those of `tensor` by default, Partial as Replicate.
// Error (NotImplementedError): this process has no part of it.
at::Tensor gather_whole(const at::Tensor& tensor, std::optional<Placements> grad_placements = std::nullopt);

// A gradient for a distributed tensor. A plain one, passed by the user, counts as replicated; differentiable.
at::Tensor distributed_gradient(const at::Tensor& gradient, const DeviceMesh& mesh);

// The cause of a redistribution that the user requested by calling `function`.
CommCause explicit_cause(std::string function);

}  // namespace dtensor::internal
