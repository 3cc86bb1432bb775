// The arguments of one operator call: gathered from the stack, as the OpCall for rules,
// and as the stack of a local operator.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "propagation/op_call.h"

namespace dtensor::internal {

// Flattened in schema order (OpCall::inputs), all on one mesh.
struct Inputs {
  absl::InlinedVector<at::Tensor, 6> tensors;  // undefined: absent
  absl::InlinedVector<uint16_t, 6> arg_of;     // the schema argument of each
  absl::InlinedVector<ArgSlot, 8> slots;       // per schema argument
  CallContext context;
  DeviceMesh mesh;
  bool writes_plain = false;       // an argument that the operator writes to is a plain tensor
  bool observed = false;           // the memory of some has an observer
  bool has_module_traits = false;  // that of some has ModuleTraits
  bool has_partial = false;        // some are Partial

  absl::InlinedVector<const at::Tensor*, 6> pointers() const;  // to the tensors
};

// Registers that the gradient of `t`, if it is a parameter, gets its layout; a Partial one is reduced. REQUIRES:
// is_dtensor(t).
void prepare_parameter_of_autograd(const OpInfo& info, const at::Tensor& t);
inline void prepare_parameter(const OpInfo& info, const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->autograd_meta() != nullptr) prepare_parameter_of_autograd(info, t);
}
// For operators that gather no inputs: registers that gradients of parameters among `args`, the arguments or some of
// them, get the parameter's layout.
void prepare_parameters(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Whether any argument is distributed.
bool has_dtensor(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Plain tensors next to distributed ones become replicated where that is allowed, and are an error elsewhere. Of the
// context, the mutable layouts are filled in. REQUIRES: has_dtensor().
Inputs gather_inputs(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Brings inputs on several meshes to one, and returns it: that of the inputs with dims or written inputs, or, if there
// is none, one over all of their ranks. Inputs from another mesh are replicated, in as few collectives as possible,
// none where its ranks have the value. In backward the same holds for an input with dims that is replicated on more
// ranks: the gradient of a tensor that was moved to them. Errors (c10::Error): inputs with dims on several meshes, or
// inputs of several worlds; the text names the arguments, the meshes and their ranks.
DeviceMesh bring_to_one_mesh(const OpInfo& info, Inputs& in);  // bring_to_one_mesh.cc
// "weight", or "tensors[1]" in a list.
std::string arg_name(const OpInfo& info, const Inputs& in, int input);
// The call as rules see it.
OpCall make_call(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args);
// The arguments of the local operator on local rank r; locals[k] are the parts of in.tensors[k].
void fill_local_stack(torch::jit::Stack& stack, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                      const std::vector<RankTensors>& locals, size_t r);

}  // namespace dtensor::internal
