// Backward in two parts: the gradient of one leaf now, those of all other leaves later, so that what waits for the
// first need not wait for the rest.
//
//   SplitBackward rest;
//   const at::Tensor g = backward_input(loss, {}, x, rest);   // the gradient of x, returned; x.grad() is left alone
//   backward_weight(std::move(rest));                         // adds to .grad of all other leaves
//
// Together they compute what backward() computes, and no product twice: the first part keeps the gradients of the nodes
// at which the way to other leaves leaves the way to `x`, and the second begins there. Exceptions: a custom function
// (torch::autograd::Function) at such a node, whose backward computes all of its gradients at once, and hooks on its
// result run in both parts, and a checkpointed part is computed again in both; a fused kernel that gives several
// gradients at once may run twice; and as cached layouts are dropped at the end of each part, a redistribution that
// both need is made in both. Between them only the tensors live that the second one needs. Source: Qi et al., Zero
// Bubble Pipeline Parallelism, ICLR 2024; torch.distributed.pipelining's stage_backward_input.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace dtensor::internal {

// What is left to do: gradients of nodes, and where they go.
struct SplitBackward {
  std::vector<torch::autograd::Edge> roots;
  std::vector<at::Tensor> gradients;
};

// The gradient of the leaf `input` for `gradient` of `root`; undefined: of a root of one element, 1. The result is
// undefined if root does not depend on input. Afterwards the graph of `root` serves backward_weight() alone: its nodes
// no longer lead to `input`. REQUIRES: root and input require gradients.
at::Tensor backward_input(const at::Tensor& root, const at::Tensor& gradient, const at::Tensor& input,
                          SplitBackward& rest);

void backward_weight(SplitBackward rest);

}  // namespace dtensor::internal
