// Cross entropy of logits whose classes are split over ranks, below autograd: each rank summarizes its classes in one
// pass (cross_entropy_part.h), the ranks exchange these summaries, in one collective for all of them, and backward is
// one pass without communication.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <string>

#include "comm/comm_event.h"
#include "ops/loss/cross_entropy_part.h"
#include "plan/spec.h"

namespace dtensor::internal {

// What a call says besides its tensors.
struct CrossEntropyCall : torch::CustomClassHolder {
  int64_t reduction = 0;
  ClassPart classes;  // without offset and size
  c10::ScalarType result_type = at::kFloat;
  std::string op, module_path;

  CommCause cause(const char* argument) const { return {op, argument, module_path, /*implicit=*/true}; }
};

// The distributed tensors of a call. `self`: [classes] or [rows, classes], without Partial and strided shards of
// classes. Before brought_to_logits() the layouts of target and weight may be any.
struct CrossEntropyTensors {
  at::Tensor self, target, weight;

  const Spec& spec() const;
  int64_t class_dim() const { return self.dim() - 1; }
  int64_t num_rows() const { return self.dim() == 1 ? 1 : self.size(0); }
  bool has_probabilities() const { return target.scalar_type() != at::kLong; }
  // How many ranks share the classes of a row, and whether ranks have different rows.
  int64_t ranks_per_row() const;
  bool splits_rows() const;
};

// Brings target and weight to the rows and classes of the logits.
CrossEntropyTensors brought_to_logits(const CrossEntropyTensors& in, const CrossEntropyCall& call);

struct CrossEntropyLoss {
  at::Tensor value;
  // For backward: numbers of each row (ops/kernels/cross_entropy.h), and what a mean over class indices divides by.
  at::Tensor max, sum, totals, divisor;
};

CrossEntropyLoss cross_entropy_loss(const CrossEntropyTensors& in, const CrossEntropyCall& call);

// The gradient of the logits, laid out like them. `loss`: without its value.
at::Tensor cross_entropy_gradient(const at::Tensor& grad_output, const CrossEntropyTensors& in,
                                  const CrossEntropyLoss& loss, const CrossEntropyCall& call);
// The same of operators that have derivatives.
at::Tensor differentiable_cross_entropy_gradient(const at::Tensor& grad_output, const CrossEntropyTensors& in,
                                                 const CrossEntropyLoss& loss, const CrossEntropyCall& call);

}  // namespace dtensor::internal
