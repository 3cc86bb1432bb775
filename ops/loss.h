// What the loss families share.
#pragma once

#include <ATen/core/Reduction.h>
#include <ATen/core/stack.h>

#include "propagation/op_call.h"

namespace dtensor {

inline bool reduces(const OpCall& call) { return call.get_int("reduction") != at::Reduction::None; }

// The stack's arguments by name.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : schema_(op.schema()), values_(stack.data() + stack.size() - schema_.arguments().size()) {}
  c10::IValue& operator[](const char* name) const { return values_[*schema_.argumentIndexWithName(name)]; }

 private:
  const c10::FunctionSchema& schema_;
  c10::IValue* const values_;
};

}  // namespace dtensor
