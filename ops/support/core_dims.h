// Operators with core dims: they need some dims whole (images, matrices, signals) and treat every index of the other
// dims, the batch, alike. The batch may be sharded; core dims are not.
//
//   add_core_dims(registry, {"aten::linalg_qr", "...MN->...AB,...CD"});
//   add_core_dims(registry, {"aten::avg_pool2d_backward", "...PQ,...HW->...HW", .linear = "grad_output"});
//
// A rank whose part of the batch is empty runs the operator on one dummy sample and discards the result, since many
// kernels reject empty batches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/support/arguments.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {

// One line of a table.
struct CoreDimsOp {
  std::string op;
  // Notation of einsum(), where capital letters are core dims. A result may lack the ellipsis or a small letter:
  // without the ellipsis it does not depend on the batch (the LU factorisation of one matrix for many right hand
  // sides), a missing small letter is summed over. A small letter's dim may come out in another size, in equal pieces
  // (channels of pixel_shuffle). '|' separates the equations for other numbers of dims: the first whose first operand
  // fits holds.
  const char* equation;
  const char* linear =
      "";  // arguments in which the operator is linear: "input weight" for a product, "+" before another term
  const char* sizes = "";  // name of an int[] argument that holds the sizes of the first result
  std::function<OutputMetas(const OpCall&)> metas =
      {};                          // metadata of the results; unset: from ATen, or from a trial on small tensors
  bool in_format_of_self = false;  // on CPUs results are channels-last if `self` is, else row-major
  bool any_size = false;           // core dims may have any size, so that the trial uses small ones
  std::string (*choose)(const OpCall&) =
      nullptr;  // chooses the equation where it depends on more than the number of dims
  char aside =
      0;  // a small letter of which results without it are independent, instead of sums over it: right hand sides
};

OpRule core_dims_rule(const CoreDimsOp& op);
void add_core_dims(RuleRegistry& registry, const CoreDimsOp& op);

// For operators that no equation describes.
struct CoreDims {
  FactorRule rule;
  // Factors on which some results do not depend: if one is split, these results are replicated, not Partial.
  std::vector<int> aside;
};
// `adjust` changes further arguments, already on the stack, from global values to those of the rank's part.
OpRule core_dims_rule(std::function<CoreDims(const OpCall&)> dims, std::function<OutputMetas(const OpCall&)> metas,
                      std::function<void(const LocalCall&, Arguments& args)> adjust = {});

}  // namespace dtensor::internal
