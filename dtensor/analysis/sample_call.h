// A call of an operator whose tensors can be replaced, to try it in many layouts. For verify_rule().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "placement/placement.h"

namespace dtensor::internal {

class SampleCall {
 public:
  // Errors (ValueError): no such operator, arguments that do not fit its schema, a distributed tensor.
  SampleCall(const std::string& op, std::vector<c10::IValue> args);

  const c10::OperatorHandle& op() const { return op_; }
  std::string name() const { return c10::toString(op_.operator_name()); }
  // The tensors among the arguments, those of lists one by one.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // All arguments, in schema order, with `tensors` in the places of tensors().
  std::vector<c10::IValue> arguments(const std::vector<at::Tensor>& tensors) const;

  struct Results {
    std::vector<at::Tensor> tensors;   // lists one by one, undefined ones too
    std::vector<c10::IValue> numbers;  // values that are no tensors
  };
  // Errors: the operator's own.
  Results run(const std::vector<at::Tensor>& tensors) const;
  bool writes() const { return op_.schema().is_mutable(); }

 private:
  c10::OperatorHandle op_;
  std::vector<c10::IValue> args_;  // with None instead of tensors
  std::vector<at::Tensor> tensors_;
};

// The results and gradients of a call on plain tensors, to compare those on distributed tensors with.
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

// Distributes `full` to a layout. A Partial gets local values of both signs that reduce to it, drawn with `seed`.
at::Tensor laid_out(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements, uint64_t seed);

// How a result, distributed or not, differs from the expected one; empty if it does not.
std::string difference_of(const at::Tensor& actual, const at::Tensor& expected, double tolerance);

}  // namespace dtensor::internal
