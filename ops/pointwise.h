// Elementwise operators and the Partials that pass through them. Internal to ops/.
#pragma once

#include <string>
#include <vector>

#include "propagation/factor_rule.h"

namespace dtensor {

using Names = std::vector<std::string>;

// Names of Scalar and float arguments of elementwise operators: their value changes neither layout nor shape.
const Names& value_free_scalars();

// Which arguments of an elementwise operator may be Partial.
struct PointwisePartials {
  // Names of the arguments; see FactorRule::terms. An operator linear on paper is taken as such only where no cast or
  // integer division lies between addend and sum: on floating tensors, or with `integers` on integers all of one dtype.
  std::vector<Names> terms;
  bool integers = false;

  struct Pass {
    Names arguments;
    ReduceOp in;
    ReduceOp out;
  };
  std::vector<Pass> passes;  // on floating tensors only, unless `integers`
};

OpRule pointwise_op(PointwisePartials partials = {});

// Families registered by register_pointwise_rules.
void register_copy_rules(RuleRegistry& registry);          // clone, detach, _to_copy, copy_, fill_, ...
void register_linear_rules(RuleRegistry& registry);        // add, mul, where, ..., activation backwards
void register_untagged_pointwise(RuleRegistry& registry);  // elementwise, but without ATen's tag
void register_foreach_handlers();

}  // namespace dtensor
