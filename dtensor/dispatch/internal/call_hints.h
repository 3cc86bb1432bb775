// The hints of a call (CallContext): what decisions depend on besides the operator, its arguments and their layouts.
//
// A new hint is a member in call_context.h, and is found in call_hints.cc: hints of the call as a whole, and facts of
// its tensors. A fact is a bit of facts_of(); contexts, keys and the calls of list operators derive from that.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "propagation/call_context.h"

namespace dtensor::internal {

// Facts of a tensor that decisions depend on besides its layout and DTensorMeta::hints, a bit each.
inline constexpr uint64_t kIsParameter = 1;
inline constexpr uint64_t kIsFactoryResult = 2;   // is_unwritten_factory_result()
inline constexpr uint64_t kHasMutableLayout = 4;  // has_mutable_layout(), if the call writes to it
inline constexpr uint64_t kAllFacts = 7;

// Whether `t` was made alike for all ranks, from no tensor (DTensorMeta::from_factory), and not written to since.
inline bool is_unwritten_factory_result(const DTensorMeta& meta) {
  return meta.from_factory && meta.spec->is_replicated() && meta.storage->writes.load(std::memory_order_relaxed) == 0;
}
inline bool is_unwritten_factory_result(const at::Tensor& t) {
  return is_unwritten_factory_result(meta_without_sync(t));
}
// All but kHasMutableLayout.
inline uint64_t facts_of(const DTensorMeta& meta) {
  return (meta.storage->is_parameter.load(std::memory_order_relaxed) ? kIsParameter : 0) |
         (is_unwritten_factory_result(meta) ? kIsFactoryResult : 0);
}
// Whether an operator that writes to `t` may change its layout with the write. The same on all ranks, since all ranks
// alias and expose parts alike.
bool has_mutable_layout(const at::Tensor& t);

// Fills in the hints of a call with these inputs, some of which may be undefined, but for the mutable layouts, which
// gather_inputs() finds, and the gradient target, which decide_call() finds.
void find_hints(const OpInfo& info, c10::ArrayRef<const at::Tensor*> inputs, CallContext& context);
// Appends the hints to the key of a call that writes to no other tensor than its first (`writes`), and has no gradient
// target. `all_facts`: of all tensors together, or kAllFacts; 0 spares a look at each. `scoped`: this thread has a
// scope. REQUIRES: no tensor has DTensorMeta::hints.
void append_hints(CacheKey& key, const OpInfo& info, c10::ArrayRef<const at::Tensor*> tensors, uint64_t all_facts,
                  bool writes, bool scoped);

}  // namespace dtensor::internal
