// Tensors without dims that lie on other meshes than what they are used with, as the norm of all gradients of a
// pipeline whose stages have meshes of their own. Internal.
#pragma once

#include "dtensor/extend/op_info.h"
#include "dtensor/internal/call_inputs.h"

namespace dtensor {

// Brings the inputs to one mesh: that of those which have dims or are written to, or, if there is none, one over all of
// their ranks. What comes from another mesh is replicated, in as few collectives as can be, none where its ranks have
// it. In backward so is what has dims and is replicated on more ranks: the gradient of what was taken to them. Sets
// `in.mesh`. Errors (c10::Error): inputs with dims on several meshes, or inputs of several worlds; the text names the
// arguments, the meshes and their ranks.
void bring_to_one_mesh(const OpInfo& info, Inputs& in);

}  // namespace dtensor
