// Hints that decide a call besides its arguments and their layouts: facts about the input tensors, and settings of the
// scope. The same on all ranks, since they follow from the operators before and from scopes.
//
// A new hint is a member of one of these structs, named in its members(), and the code that reads it. Members of
// TensorHints go from Decision::output_hints with the tensor to the calls that read it, those of ScopeHints from
// DispatchScope to all calls inside; the others are found in dtensor/dispatch/internal/call_hints.cc, but for
// gradient_target (gradient_target.cc).
#pragma once

#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "plan/limits.h"
#include "plan/spec.h"

namespace dtensor {

// The key of a call in the strategy cache.
using CacheKey = c10::SmallVector<uint64_t, 32>;

// In each struct: members() is all that it has, for the key and for comparisons. One that is missing is a compile
// error.

// What a tensor carries to the calls that read it.
struct TensorHints {
  // The layout that it would have if its operator had left the inputs where they were. For rows looked up for a sharded
  // batch: the batch sharding. A Partial is best reduce-scattered to it, and a displaced input best moved back to it.
  // Null: not known.
  SpecPtr preferred_layout;

  auto members() const {
    const auto& [preferred] = *this;
    return std::tie(preferred);
  }
  bool any() const { return members() != TensorHints().members(); }
  std::string to_string() const;  // "preferred layout: S(0)", for DTensor::explain(); empty: none is known
};

// What the code around a call asks of it.
struct ScopeHints {
  Limits limits;                   // of redistributions of inputs (RedistributeMemoryLimit)
  bool keep_class_shards = false;  // of scores (OpRule::class_dim), in a LossParallel scope

  auto members() const {
    const auto& [max, keep] = *this;
    return std::tie(max, keep);
  }
  std::string to_string() const;  // " within 1024 bytes", for a call's description; empty: none is set
};

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
  // Partial factors of a product are read by another operator later, as most gradients are in backward.
  bool partial_inputs_reused = false;
  // In backward: the layout that the computed gradient will be redistributed to. For rules with
  // OpRule::uses_gradient_target that of the leaf; for others only where the gradient waits in the bucket. Null: not
  // known.
  SpecPtr gradient_target;
  c10::SmallVector<TensorHints, 1> inputs;  // one per input, or empty: none has any
  ScopeHints scope;

  auto members() const {
    const auto& [layouts, leaves, made, reused, target, carried, around] = *this;
    return std::tie(layouts, leaves, made, reused, target, carried, around);
  }

  bool is_mutable(size_t input) const;
  bool is_parameter(size_t input) const;
  bool is_factory_input(size_t input) const;
  const Spec* preferred_layout(size_t input) const;  // null: not known
  bool has_same_hints(size_t a, size_t b) const;     // about the inputs a and b

  // All of it, for the strategy cache. The cached decision keeps the context, so that ids of specs stay theirs.
  void append_to_key(CacheKey& key) const;
  static void append_none_to_key(CacheKey& key) { key.push_back(0); }  // the same for one without any hint
};

namespace internal {

// Appends the length of `text` and its characters.
void append_text(CacheKey& key, std::string_view text);

}  // namespace internal

}  // namespace dtensor
