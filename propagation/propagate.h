// From a call to a decision: which strategy, which redistributions first, what comes out.
#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <vector>

#include "propagation/op_rule.h"
#include "propagation/redistribute_plan.h"

namespace dtensor {

// The whole decision for one operator on given specs: what the strategy cache stores. No tensors, no values.
struct OpPlan {
  std::shared_ptr<const OpRule> rule;
  std::vector<SpecPtr> given;     // specs of the inputs as they came
  std::vector<SpecPtr> computed;  // specs that the local kernels see
  std::vector<std::shared_ptr<const RedistributePlan>> input_plans;  // null: input taken as it is
  std::vector<SpecPtr> outputs;   // flattened; null: undefined
  std::vector<int> output_counts;  // as OutputMetas::counts
  std::vector<int64_t> output_offsets;  // as OutputMetas::offsets
  std::vector<int> aliases;        // per output: index of the input it writes to, or -1
  SpecPtr gradient_target;
  // No decision for these specs: an argument that is written to is Partial and must be reduced first. All else is empty.
  bool reduces_written = false;

  int64_t bytes() const;  // of all input redistributions
  // "aten::mm(S(0), R) -> S(0); input 1: S(0) -> R: all_gather(dp) 4096 B"
  std::string explain(const OpCall& call) const;
};

// An in-place or out= operator would have to change the layout of what it writes to.
struct WrittenLayoutError : c10::Error {
  using c10::Error::Error;
};

// Decides. Inputs that an operator writes to keep their layout.
// Errors, before anything is communicated: NotImplementedError if the operator has no rule or its output shape cannot be
// known; WrittenLayoutError.
std::shared_ptr<const OpPlan> propagate(const OpCall& call);

// The text of the error of an operator without a rule: what to do about it.
std::string missing_rule_text(const c10::OperatorHandle& op);

// Global metadata of the outputs: the rule's own function, ATen's meta kernel, or a trial on one element.
OutputMetas infer_outputs(const OpCall& call, const OpRule& rule);

// Of an elementwise operator, tagged as such or not: its dtypes are those that the operator itself gives on one element. An
// OpRule::metas for operators without a meta kernel.
OutputMetas infer_elementwise(const OpCall& call);

}  // namespace dtensor
