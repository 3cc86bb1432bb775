// Activation checkpointing: between forward and backward, a part of a model keeps its inputs only, not what its
// operators would save. Backward computes the part once more when it first needs one of these tensors.
//
//   for (auto& block : blocks) x = checkpoint([&](const at::Tensor& x) { return block->forward(x); }, x);
//
// On plain and on distributed tensors. Gradients, hooks, gradient buckets and groups of fully_shard() are those of the
// same forward without checkpoint(), in torch::autograd::grad() and with create_graph, too; dropout draws the same
// numbers again. What the part communicates in forward it communicates again, except for what tensors remember. Other
// effects of the part happen twice, such as the running statistics of batch norm. A checkpoint within another one keeps
// its own inputs, too, and is computed twice in backward.
//
// Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016;
// torch.utils.checkpoint.checkpoint(use_reentrant=False), which is the one to call in a Python program.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace dtensor {

// function(input), differentiable. `function` is copied, and called again in backward: what it refers to must still be
// there, and it must compute the same. The scopes of scopes.h, autocast of CPU and CUDA, and the state of the default
// random generators of the CPU and of the input's device are then those of this call; listeners, such as CommDebugMode,
// are those of backward. Without grad mode: a plain call.
// Errors: those of `function`; (c10::Error) a Python program; backward() inside `function` for its own operators; in
// backward, if `function` saves other tensors than it did in forward (the text names the first, with both shapes), or
// if an input, or a tensor that it saved, was written to in place.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input);

// The same with several inputs and results.
std::vector<at::Tensor> checkpoint(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs);

}  // namespace dtensor
