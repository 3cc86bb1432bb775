// The rule of an operator: the layouts in which it can be computed, and the layouts of its results.
//
// A rule is a value. Most are written in the rule language of factor_rule.h; others are small functions. Register one
// for your own operator (rule_registry.h):
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

// The same for all mesh dims.
struct Strategy {
  std::vector<Placements> outputs;
  std::vector<Placements> inputs;
};

// Information for a local kernel: the specs, and the index `i` of the local rank whose parts it gets.
struct LocalCall {
  const c10::OperatorHandle& op;
  const std::vector<SpecPtr>& inputs;   // after redistribution; flattened as in OpCall
  const std::vector<SpecPtr>& outputs;  // flattened; null for an undefined output
  int64_t i;                            // index into mesh.local_ranks()
  const DeviceMesh& mesh;
};

// The number of floating-point operations of a call on inputs of these shapes, one per OpCall::inputs, whole or a
// rank's parts. Two per product that is added to a sum.
using Flops = std::function<double(const std::vector<Shape>& inputs)>;

// The dtype in which they are computed: that of the first tensor, since those of a product have the same.
inline c10::ScalarType dtype_of_flops(const OpCall& call) {
  for (const SpecPtr& input : call.inputs) {
    if (input) return input->dtype();
  }
  return c10::ScalarType::Float;
}

struct OpRule {
  // Strategies along one mesh dim, best first where costs are equal. All mesh dims combine freely.
  std::function<std::vector<DimStrategy>(const OpCall&, int64_t mesh_dim)> per_dim;
  // Or complete strategies, for operators whose strategies on different mesh dims depend on one another (views). One of
  // the two is set.
  std::function<std::vector<Strategy>(const OpCall&)> whole;

  // Global metadata of the outputs, of a call without its out= arguments. Unset: ATen's meta kernel, and for pointwise
  // operators a trial on one element.
  std::function<OutputMetas(const OpCall&)> metas;

  // The computation on one rank: pops the arguments from the stack, pushes the results. Unset: the operator itself.
  // Local tensors are plain; autograd is off. Results of operators that are no views share no memory with them. With
  // set_parallel_ranks(true) several ranks call it at the same time.
  std::function<void(const LocalCall&, torch::jit::Stack&)> local;

  // Arguments whose value affects neither layout nor shape: the cache key has only their type, and whether they are
  // finite; for those among `divisors` also whether they are 0.
  std::vector<std::string> value_free;
  std::vector<std::string> divisors;

  // For operators that multiply matrices, such as convolutions. Empty: there are no matrix products.
  std::function<Flops(const OpCall&)> flops;

  // Of an operator on scores of classes: their dim in input `k`, an index into OpCall::inputs, that has the scores or
  // their gradient; nullopt: it has neither. ScopeHints::keep_class_shards is about that dim. Empty: no such operator.
  std::function<std::optional<int64_t>(const OpCall&, int k)> class_dim;

  // The strategies look at CallContext::gradient_target.
  bool uses_gradient_target = false;

  // `local` does no more than to call the operator, except for integers or empty parts, or if an input or the result is
  // Partial. (A view's argument `size` may be the local size.) Then calls of the operator may take a typed kernel
  // (dtensor/tensor/typed_operators.h).
  bool local_calls_operator = false;
};

}  // namespace dtensor
