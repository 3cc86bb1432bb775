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
};

// Registers that the gradient of `t`, if it is a parameter, gets its layout. REQUIRES: is_dtensor(t).
void prepare_parameter_of_autograd(const OpInfo& info, const at::Tensor& t);
inline void prepare_parameter(const OpInfo& info, const at::Tensor& t) {
  if (t.unsafeGetTensorImpl()->autograd_meta() != nullptr) prepare_parameter_of_autograd(info, t);
}
// For operators that gather no inputs: registers that gradients of parameters among `args`, the arguments or some of
// them, get the parameter's layout.
void prepare_parameters(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Whether any argument is distributed.
bool has_dtensor(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Plain tensors next to distributed ones become replicated where that is allowed, and are an error elsewhere. REQUIRES:
// has_dtensor().
Inputs gather_inputs(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
// Brings inputs on several meshes to one, and returns it: that of the inputs with dims or written inputs, or, if there
// is none, one over all of their ranks. Inputs from another mesh are replicated, in as few collectives as possible,
// none where its ranks have the value. In backward the same holds for an input with dims that is replicated on more
// ranks: the gradient of a tensor that was moved to them. Errors (c10::Error): inputs with dims on several meshes, or
// inputs of several worlds; the text names the arguments, the meshes and their ranks.
DeviceMesh bring_to_one_mesh(const OpInfo& info, Inputs& in);  // bring_to_one_mesh.cc
// Fills in the context from the tensors and the scope, but for the mutable layouts, which gather_inputs() finds, and
// the gradient target.
void note_context(const OpInfo& info, Inputs& in);
// The same for the tensors of a call.
void note_context(const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors, CallContext& context);
// Whether note_context() would find nothing: cheaper. REQUIRES: no tensor has DTensorMeta::hints, and this thread has
// no scope.
bool has_no_hints(const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors);
// What note_context() reads of a tensor besides its spec and DTensorMeta::hints, as bits. A fact that is added there is
// added here, too: else the calls of a list operator share decisions that differ.
inline uint64_t hints_of(const DTensorMeta& meta);
inline constexpr uint64_t kIsUnwrittenFactoryResult = 2;  // one of the two bits
// Whether an operator that writes to `t` may change its layout with the write. The same on all ranks, since all ranks
// alias and expose parts alike.
bool has_mutable_layout(const at::Tensor& t);
// For a call that writes to its first tensor alone: whether that one's layout is in CallContext::mutable_layouts.
bool has_own_mutable_layout(c10::ArrayRef<const at::Tensor*> tensors);
// Whether `t` was made alike for all ranks, from no tensor (DTensorMeta::from_factory), and not written to since.
inline bool is_unwritten_factory_result(const DTensorMeta& meta) {
  return meta.from_factory && meta.spec->is_replicated() && meta.storage->writes.load(std::memory_order_relaxed) == 0;
}
inline bool is_unwritten_factory_result(const at::Tensor& t) {
  return is_unwritten_factory_result(meta_without_sync(t));
}
inline uint64_t hints_of(const DTensorMeta& meta) {
  return uint64_t{meta.storage->is_parameter.load(std::memory_order_relaxed)} |
         (is_unwritten_factory_result(meta) ? kIsUnwrittenFactoryResult : 0);
}
// "weight", or "tensors[1]" in a list.
std::string arg_name(const OpInfo& info, const Inputs& in, int input);
// The call as rules see it.
OpCall make_call(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args);
// The arguments of the local operator on local rank r; locals[k] are the parts of in.tensors[k].
void fill_local_stack(torch::jit::Stack& stack, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                      const std::vector<RankTensors>& locals, size_t r);

}  // namespace dtensor::internal
