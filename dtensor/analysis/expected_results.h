// The results and gradients of a sample call on plain tensors. verify_rule() compares those on distributed tensors with
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/analysis/sample_call.h"

namespace dtensor::internal {

class ExpectedResults {
 public:
  // Runs `call`. With `gradients`, also differentiates a linear function of its results, with factors drawn with
  // `seed`, unless the call writes to its arguments or has no derivative. Errors (ValueError): plain LibTorch does not
  // take the arguments.
  ExpectedResults(const SampleCall& call, bool gradients, uint64_t seed);

  // Whether the call was differentiated: inputs must then require gradients.
  bool differentiated() const { return !gradients_.empty(); }
  bool has_gradients() const;  // some input has one

  // The fault of the results on distributed tensors; empty: none. Communicates to read them.
  std::string wrong_result(const SampleCall::Results& actual, double tolerance) const;
  // The fault of the gradients of `inputs`, from which `actual` was computed; empty: none, or not differentiated.
  std::string wrong_gradient(const SampleCall::Results& actual, const std::vector<at::Tensor>& inputs,
                             double tolerance) const;

 private:
  SampleCall::Results results_;
  std::vector<at::Tensor> seeds_;      // factors of each result; undefined: not differentiable
  std::vector<at::Tensor> gradients_;  // of each tensor; empty: not differentiated
};

}  // namespace dtensor::internal
