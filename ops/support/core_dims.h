// Operators with core dims: they work on some dims as a whole (images, matrices, signals) and do the same at every
// index of the others, the batch. Ranks may split the batch; core dims are whole. Internal to ops/.
//
//   add_core_dims(registry, {"aten::linalg_qr", "...MN->...AB,...CD"});
//   add_core_dims(registry, {"aten::avg_pool2d_backward", "...PQ,...HW->...HW", .linear = "grad_output"});
//
// A rank that has nothing of the batch runs the operator on one stand-in, since many kernels refuse nothing at all, and
// keeps none of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ops/support/arguments.h"
#include "propagation/factor_rule.h"
#include "propagation/rule_registry.h"

namespace dtensor {

// One line of a table.
struct CoreDimsOp {
  std::string op;
  // In the language of einsum(), with a meaning for capital letters: core dims. What a result has of the ellipsis or of
  // a small letter it may also lack: those of the ellipsis are then no part of what it is computed of (the LU
  // factorisation of one matrix for many right hand sides), a small letter is summed over. A small letter's dim may
  // come out in another size, in equal pieces (channels of pixel_shuffle). '|' separates the equations for other
  // numbers of dims: the first whose first operand fits holds.
  const char* equation;
  const char* linear = "";  // arguments in which it is linear: "input weight" for a product, "+" before another term
  const char* sizes = "";   // an int[] that says the sizes of the first result
  std::function<OutputMetas(const OpCall&)> metas = {};  // of the results; unset: ATen's, or a trial on small tensors
  bool any_size = false;  // it works on core dims of any size, so that the trial takes a small one
  const char* (*choose)(const OpCall&) = nullptr;  // the equation, where it depends on more than a number of dims
  char aside = 0;  // a small letter that results without it know nothing of, instead of being sums: right hand sides
};

OpRule core_dims_rule(const CoreDimsOp& op);
void add_core_dims(RuleRegistry& registry, const CoreDimsOp& op);

// For what no equation says.
struct CoreDims {
  FactorRule rule;
  // Factors that some results do not depend on: these come out whole, instead of as addends, where it is split.
  std::vector<int> aside;
};
// `adjust` brings other arguments from the whole tensors to a rank's parts, which are on the stack already.
OpRule core_dims_rule(std::function<CoreDims(const OpCall&)> dims, std::function<OutputMetas(const OpCall&)> metas,
                      std::function<void(const LocalCall&, Arguments& args)> adjust = {});

}  // namespace dtensor
