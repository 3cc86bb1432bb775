// What the engine must know of an operator: in which layouts it can be computed, and what comes out.
//
// A rule is a value. Most are written in the rule language of factor_rule.h; what cannot be said there is a small
// function. Register one for your own operator (rule_registry.h):
//
//   OpRule rule;
//   rule.per_dim = [](const OpCall& call, int64_t) { return strategies(einsum(call, "mk,kn->mn")); };
//   RuleRegistry::instance().add("mylib::matmul", rule);
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "propagation/op_call.h"

namespace dtensor {

// One way to compute an operator, seen along one mesh dim: a placement per output and per input. Computing on those
// inputs on every rank, without communication, gives those outputs.
struct DimStrategy {
  Placements outputs;
  Placements inputs;  // one per OpCall::inputs; the entries of absent inputs are ignored
};

// The same along all mesh dims.
struct Strategy {
  std::vector<Placements> outputs;
  std::vector<Placements> inputs;
};

// What a local kernel may know: the ranks' parts are what the specs say for local rank `i`.
struct LocalCall {
  const c10::OperatorHandle& op;
  const std::vector<SpecPtr>& inputs;   // as computed on, after redistribution; flattened as in OpCall
  const std::vector<SpecPtr>& outputs;  // flattened; null for an undefined output
  int64_t i;                            // index into mesh.local_ranks()
  const DeviceMesh& mesh;
};

// One entry per output tensor, in schema order, list elements one by one; nullopt: an undefined tensor.
struct OutputMetas {
  std::vector<std::optional<TensorMeta>> tensors;
  std::vector<int> counts;  // per schema return: number of tensors; -1 for a single Tensor
  // Of views: where they begin in the memory of the tensor they are of, in their own elements. Empty: there, too.
  std::vector<int64_t> offsets;
};

// How many floating-point operations a call takes on inputs of these shapes, one per OpCall::inputs, be they whole or a
// rank's parts. Two per product that is added to a sum.
using Flops = std::function<double(const std::vector<Shape>& inputs)>;

struct OpRule {
  // Strategies along one mesh dim, best first where costs are equal. All mesh dims combine freely.
  std::function<std::vector<DimStrategy>(const OpCall&, int64_t mesh_dim)> per_dim;
  // Or, for operators whose dims of the mesh depend on one another (views): complete strategies. One of the two is set.
  std::function<std::vector<Strategy>(const OpCall&)> whole;

  // Global metadata of the outputs. Unset: ATen's meta kernel, and for pointwise operators a trial on one element.
  std::function<OutputMetas(const OpCall&)> metas;

  // The computation on one rank: takes the arguments off the stack, leaves the results. Unset: the operator itself.
  // Local tensors are plain; autograd is off.
  std::function<void(const LocalCall&, torch::jit::Stack&)> local;

  // Arguments whose value matters neither to layout nor to shape: only their type takes part in the cache key, and
  // whether they are finite; of those among `divisors` also whether they are 0.
  std::vector<std::string> value_free;
  std::vector<std::string> divisors;

  // Of operators that multiply matrices, as convolutions do. Empty: the call multiplies none.
  std::function<Flops(const OpCall&)> flops;

  // The strategies look at CallContext::gradient_target.
  bool uses_gradient_target = false;
};

}  // namespace dtensor
