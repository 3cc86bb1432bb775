// Hints that decide a call besides its arguments and their layouts: facts about the input tensors, and limits of the
// scope. The same on all ranks, since they follow from the operators before and from scopes.
//
// A new hint is a field here with its line in append_to_key() and in has_same_hints(), and the code that prices it;
// note_context() (dtensor/dispatch/internal/call_inputs.h) reads it off the tensors.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>

#include "plan/limits.h"
#include "plan/spec.h"
#include "propagation/cache_key.h"

namespace dtensor {

// Inputs are named by their index into OpCall::inputs.
struct CallContext {
  // Inputs that the operator writes to and whose layout may change with the write: the engine chose it, and nothing
  // shares their memory.
  c10::SmallVector<int, 2> mutable_layouts;
  // Inputs that are parameters, or views of them. Their gradients return to the layout that they have now: where one
  // moves for the operator, its gradient moves, too.
  c10::SmallVector<int, 2> parameters;
  // Replicated inputs that a factory made in a MeshScope (zeros, arange, noise) and that were not written to since.
  // Their layout does not keep an operator from sharding them.
  c10::SmallVector<int, 1> factory_inputs;
  // Empty, or per input: the layout that the input would have if its operator had left the inputs where they were. For
  // rows looked up for a sharded batch: the batch sharding. A Partial is best reduce-scattered to it, and a displaced
  // input best moved back to it. Null: not known.
  c10::SmallVector<SpecPtr, 1> preferred_layouts;
  // Partial factors of a product are read by another operator later, as most gradients are in backward.
  bool partial_inputs_reused = false;
  // In backward: the layout that the computed gradient will be redistributed to. For rules with
  // OpRule::uses_gradient_target that of the leaf; for others only where the gradient waits in the bucket. Null: not
  // known.
  SpecPtr gradient_target;
  Limits limits;                   // of redistributions of inputs
  bool keep_class_shards = false;  // of scores (OpRule::class_dim), as in a LossParallel scope

  bool is_default() const;  // no hints
  bool is_mutable(size_t input) const;
  bool is_parameter(size_t input) const;
  bool is_factory_input(size_t input) const;
  const Spec* preferred_layout(size_t input) const;  // null: not known
  bool has_same_hints(size_t a, size_t b) const;     // about the inputs a and b

  // All of it, for the strategy cache. The cached decision keeps the context, so that ids of specs stay theirs.
  void append_to_key(CacheKey& key) const;
};

}  // namespace dtensor
