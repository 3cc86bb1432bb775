// Elementwise operators and the kinds of Partial that pass through them.
#pragma once

#include <string>
#include <vector>

#include "propagation/factor_rule.h"

namespace dtensor::internal {

using Names = std::vector<std::string>;

// Names of Scalar and float arguments of elementwise operators: their value changes neither layout nor shape.
const Names& value_free_scalars();

// Which arguments of an elementwise operator may be Partial.
struct PointwisePartials {
  std::vector<Names> terms;  // names of the arguments; see FactorRule::terms, maths and divisors
  PartialSemantics maths = PartialSemantics::kReal;

  struct Pass {
    Names arguments;
    ReduceOp in;
    ReduceOp out;
    PartialSemantics maths;
  };
  std::vector<Pass> passes = {};
  Names divisors = {};
};

OpRule pointwise_op(PointwisePartials partials = {});

// Passes every kind of Partial of these arguments unchanged.
std::vector<PointwisePartials::Pass> copies(const Names& arguments);

// Whether argument `a` of the operator is a tensor (or a number).
bool takes_tensor(const LocalCall& local, size_t a);

// A constant is the same on all ranks, but must count once where the ranks' results are added up (or multiplied). This
// is the rank's share of it. `partial`: the input whose Partial the result has; `whole`: the constant input, -1 for a
// number.
enum class ConstantShare { kAll, kZero, kOne };
ConstantShare share_of_constant(const LocalCall& local, int partial, int whole);

// Replaces an argument on the stack by its share: the tensor or number itself, or zeros or ones of its dtype.
void hold_constant(const LocalCall& local, torch::jit::Stack& stack, size_t argument, ConstantShare share);

}  // namespace dtensor::internal
