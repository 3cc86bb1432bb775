// A Linear's product in an OverlapCommunication scope, with the exchange that its parallel style asks for. Above
// autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <optional>

#include "comm/comm_event.h"
#include "placement/placement.h"

namespace dtensor::internal {

// input * weight^T + bias.
struct LinearCall {
  at::Tensor input;   // [..., inputs]
  at::Tensor weight;  // [outputs, inputs]
  at::Tensor bias;    // [outputs]; undefined: none
};

// The call of linear(), matmul(), mm() or addmm() as a LinearCall with that input; nullopt: it is none.
std::optional<LinearCall> linear_call(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args,
                                      const at::Tensor& input);

// What a style asks for on its mesh dim. Dims are normalised.
struct LinearMoves {
  int64_t mesh_dim = 0;
  std::optional<Placement> input, output;
  CommCause input_cause, output_cause;
};

// Runs the call in chunks, next to the gather of its input or else the reduce_scatter of its result, and its backward
// likewise. Returns the result, whose layout `moves.output` remains to be made if the input was gathered. Undefined,
// and nothing done: outside of the scope, or the call is one that the scope leaves as it is (overlap_communication.h).
at::Tensor overlapped_linear(const LinearCall& call, const LinearMoves& moves);

}  // namespace dtensor::internal
