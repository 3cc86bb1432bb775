// The decision for an operator's call: the value in the strategy cache.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "propagation/op_call.h"
#include "propagation/op_rule.h"

namespace dtensor {

struct RedistributePlan;  // plan/redistribute_plan.h

// An in-place or out= operator would have to change the layout of a written argument.
struct WrittenLayoutError : c10::Error {
  using c10::Error::Error;
};

// For one operator on given specs. Contains no tensors and no values.
struct Decision {
  std::shared_ptr<const OpRule> rule;                                // null: of a composite operator decided as one
  std::vector<SpecPtr> computed;                                     // specs that the local kernels see
  std::vector<std::shared_ptr<const RedistributePlan>> input_plans;  // null: input used in its layout
  std::vector<SpecPtr> outputs;                                      // flattened; null: undefined
  std::vector<int> output_counts;                                    // as OutputMetas::counts
  std::vector<int64_t> output_offsets;                               // as OutputMetas::offsets
  // That was decided, as to_keep() of it. Also since the cache's key names specs by id: they live as long as the
  // decision, as new ones would have other ids.
  std::shared_ptr<const OpCall> call;

  std::vector<TensorHints> output_hints;  // what the outputs carry to the calls that read them; empty: nothing

  // Every input stays in its layout, none is Partial or absent, the one result is a tensor, and the local computation
  // is the operator itself: a typed kernel can compute the call without a stack.
  bool direct = false;
  // Of a composite operator decided as one: its parts gave a view of a result of theirs, whose memory counts as shared.
  bool shares_memory = false;

  // Whether the local computation is the operator itself, on the layouts of the decision.
  bool calls_operator() const;
  // Of all input redistributions.
  int64_t bytes() const;
  double input_seconds() const;  // estimate
  bool moves_inputs() const;     // some input is not used in its layout
  bool communicates() const;     // false: every input has its parts already
  // "aten::mm(S(0), R) -> S(0); input 1: S(0) -> R: all_gather(dp) 4096 B"
  std::string explain() const;
};

// A copy of `call` that keeps its world not in use, and none of the arguments that have a state: generators, objects.
std::shared_ptr<const OpCall> to_keep(const OpCall& call);

}  // namespace dtensor
