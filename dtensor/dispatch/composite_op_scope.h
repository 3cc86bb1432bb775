// Tracks LibTorch's own code that runs inside a composite operator called with distributed tensors.
//
// A composite operator (one_hot, quantile, scaled_dot_product_attention, ...) is decomposed above autograd, so the
// fallback below sees only its pieces, with plain tensors that the composite's code has made: masks, positions,
// constants. Every rank makes the same ones, so they count as replicated, while a plain tensor of the user next to a
// distributed one is an error. To distinguish them, each of ATen's composite operators has a kernel at
// kAboveAutogradKey, which records that its code runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"
#include "dtensor/dispatch_key.h"
#include "mesh/device_mesh.h"

namespace dtensor::internal {

// Guard: the code of `op`, called with `args`, runs on this thread until destruction.
class CompositeOpScope {
 public:
  CompositeOpScope(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> args);
  // `tensors`: those among the arguments.
  CompositeOpScope(const c10::OperatorHandle& op, c10::ArrayRef<const at::Tensor*> tensors);
  ~CompositeOpScope();
  CompositeOpScope(const CompositeOpScope&) = delete;
  CompositeOpScope& operator=(const CompositeOpScope&) = delete;

  // The composite operator that runs on this thread; null: none with distributed arguments.
  static const CompositeOpScope* current();

  // The mesh of the distributed arguments.
  const DeviceMesh& mesh() const { return mesh_; }
  // Plain tensors in this scope were made by the composite's code: the user passed none, or only numbers.
  bool makes_plain() const { return makes_plain_; }
  bool is_outermost() const { return around_ == nullptr; }
  // Whether `t` is one of the plain tensors that the user passed.
  bool was_given(const at::Tensor& t) const;
  // The operator that the user called: this one or an enclosing one.
  std::string called_operator() const;

 private:
  // Records the mesh of a distributed argument, or that a plain one was given. Returns whether it is plain and no
  // number.
  bool note_argument(const at::Tensor& t);
  void begin(bool given_plain);

  const c10::OperatorHandle& op_;
  const CompositeOpScope* const around_;
  DeviceMesh mesh_;
  bool makes_plain_ = true;
  absl::InlinedVector<const c10::TensorImpl*, 4> given_;  // plain ones
  std::optional<c10::impl::IncludeDispatchKeyGuard> factories_reach_us_;
};

// For handlers of composite operators: runs the operator as if it had no handler, so that autocast, whose key lies
// between, applies before the operator's own code.
void run_without_handler(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Whether `t` has the same value on every rank whatever made it: a number, or an empty list of numbers.
bool counts_as_number(const at::Tensor& t);

}  // namespace dtensor::internal
