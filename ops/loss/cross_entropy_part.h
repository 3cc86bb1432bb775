// Vocabulary-parallel cross entropy on plain tensors: over the classes that one rank holds, by the kernels for CPU and
// CUDA (ops/kernels/cross_entropy.h), each way in one pass over the logits and without memory of their size besides the
// gradient. They take logits of float, double, half and bfloat16.
//
// Registered with LibTorch's dispatcher, with autograd and for tensors without data:
//
//   dtensor::cross_entropy_part(Tensor logits, Tensor target, Tensor? weight, int offset, int num_classes,
//                               int ignore_index=-100, float label_smoothing=0.0) -> Tensor
//   dtensor::cross_entropy_part_backward(Tensor grad, Tensor max, Tensor logits, Tensor target, Tensor? weight,
//                                        int offset, int num_classes, int ignore_index=-100,
//                                        float label_smoothing=0.0) -> Tensor
//
// With them, ranks whose logits are [rows, own classes] get the loss of each row, where `weight` has the weights of
// the own classes:
//
//   part = dtensor::cross_entropy_part(logits, target, ...)  // [3, rows] without weights: max, sum, product
//   all = all_gather(part)                                   // [ranks, 3, rows]
//   max = all[:, 0].amax(0)
//   sum = ((all[:, 0] - max).exp() * all[:, 1]).sum(0)
//   loss = sum.log() + (max - all[:, 2].sum(0))              // of rows that are not ignored
//
// In derivatives the maxima are constants: they are right for results that depend on max + log(sum) alone, as this one.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/kernels/cross_entropy.h"

namespace dtensor::internal {

// The arguments of both. `logits`: [rows, part.size]; `target`: [rows] of int64 in [0, part.num_classes), or
// probabilities like the logits; `weight`: undefined, or [part.size] of any floating dtype.
struct CrossEntropyArguments {
  at::Tensor logits, target, weight;
  ClassPart part;

  bool has_probabilities() const { return target.scalar_type() != at::kLong; }
};

// Whether there is a kernel for such logits.
bool has_cross_entropy_kernel(c10::Device device, c10::ScalarType dtype);

// The SummaryNumbers of each row: [numbers, rows], in float for half types; 0 in ignored rows, but for
// the sum, which is 1. Error (IndexError): a target is no class; on CUDA a device assertion.
at::Tensor cross_entropy_part(const CrossEntropyArguments& args);

// The gradient of the logits, for the gradients of kSum and kProduct, [2, rows]. `max`: [rows], of the own classes or,
// with the gradient of the sum relative to that, of all.
at::Tensor cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max,
                                       const CrossEntropyArguments& args);

// The same of operators that have derivatives by `grad` and the logits.
at::Tensor differentiable_cross_entropy_part_backward(const at::Tensor& grad, const at::Tensor& max,
                                                      const CrossEntropyArguments& args);

}  // namespace dtensor::internal
