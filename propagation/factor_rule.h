// The rule language: which output dims come from which input dims, and in which inputs the operator is linear.
//
// A factor is a dim that runs through the operator: "mk,kn->mn" has the factors m, k, n. Splitting a factor over ranks
// shards every tensor that has it on that dim; tensors without it stay whole, and an output without it becomes Partial
// (k above). Linearity determines which inputs may be Partial. The engine derives every strategy from that, for any
// mesh, uneven sizes too.
//
//   strategies(einsum(call, "mk,kn->mn"))        // R,R->R  S0,R->S0  R,S1->S1  S1,S0->P  P,R->P  R,P->P
//   strategies(einsum(call, "mn+mk,kn->mn"))     // addmm: '+' separates the terms of a sum
//   strategies(einsum(call, "...K->...K"))       // capital letters are computed whole: softmax over the last dim
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "propagation/op_rule.h"
#include "propagation/partial_dtypes.h"

namespace dtensor {

inline constexpr int kNoFactor = -1;  // not shared with other tensors: size 1 and broadcast, or new

struct FactorRule {
  // Factor of each dim of each input (absent inputs: empty) and output. Factors are small integers from 0.
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;

  // Factors that no mesh dim may shard (Shardy's need_replication).
  std::vector<int> need_replication;

  // The placement of an output without a split factor. A factor that some output lacks and that has no entry here
  // needs replication.
  struct Contraction {
    int factor;
    ReduceOp op;
  };
  std::vector<Contraction> contractions;

  // The operator is the sum over terms of the product of the term's inputs (indices into inputs): with one input of
  // every term Partial(sum) and the rest whole, the outputs are Partial(sum); avg likewise. Inputs in no term are never
  // Partial.
  std::vector<std::vector<int>> terms;
  // The arithmetic of the terms: kReal if there is a division, or a factor that is not an integer.
  PartialSemantics maths = PartialSemantics::kRing;
  // Arguments, tensors or numbers, by which the terms are divided.
  std::vector<std::string> divisors;

  // Further kinds of Partial that pass through: if the named inputs have it and all others are Replicate.
  struct Passthrough {
    std::vector<int> inputs;
    ReduceOp in;
    ReduceOp out;
    PartialSemantics maths = PartialSemantics::kCopy;
  };
  std::vector<Passthrough> passthroughs;
};

// The dtypes that a Partial may have are not part of a rule: strategies() omits those that passes() of partial_dtypes.h
// rejects for the dtypes of the present inputs and results, and linear ones next to a number that is not finite or a
// divisor of 0.

// All strategies of a rule along one mesh dim: everything replicated first, then a split of each factor, then the
// Partials. With a `mesh_dim`, the placements of the inputs there matter: StridedShards among them are tried as splits
// too, and a Partial that is not a sum is left out if no input has it, because nothing becomes one.
std::vector<DimStrategy> strategies(const FactorRule& rule, const OpCall& call, int64_t mesh_dim = -1);

// From an equation: inputs in the order of OpCall::inputs, ',' for a product, '+' for a sum (each input is a term of
// its own product), "->" outputs separated by ','. "..." stands for leading dims, aligned at the right and broadcast. A
// dim of size 1 where the factor has another size is broadcast; '1' names a dim of no factor. A term of one input,
// beside others, may have fewer dims than letters: they are aligned at the right. Contracted factors become
// Partial(sum). Capital letters need replication. `linear` = false: no terms, and contracted factors need it, too.
// Error (c10::Error): an input's number of dims does not fit; the text names operator and argument.
FactorRule einsum(const OpCall& call, std::string_view equation, bool linear = true);

// The same for factor_op(), which asks at every miss: the equation is parsed once, here.
std::function<FactorRule(const OpCall&)> einsum_rule(std::string_view equation, bool linear = true);

// Elementwise with broadcasting, one factor per dim of the result, `num_outputs` results of that shape. No terms.
FactorRule pointwise(const OpCall& call, int num_outputs = 1);

// One input `input` reduced over `dims` (normalised): output dims follow; reduced factors contract with `op`, or
// need replication if nullopt. keepdim leaves dims of size 1. Sums and averages count as linear in `input`, and the
// other ops pass their kind of Partial through: clear `terms` (`passthroughs`) of the result where that is wrong
// (count_nonzero, norms).
FactorRule reduction(const OpCall& call, int input, const std::vector<int64_t>& dims, bool keepdim,
                     std::optional<ReduceOp> op, int num_outputs = 1);

// Floating-point operations of a rule whose terms are summed products: OpRule::flops. Empty for others.
Flops flops(const FactorRule& rule);

// A rule that consists of a FactorRule only.
OpRule factor_op(std::function<FactorRule(const OpCall&)> rule);

}  // namespace dtensor
