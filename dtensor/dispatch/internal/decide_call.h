// Decides a call: by the strategy cache, or, if it does not have the call's key, by propagate().
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <memory>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/op_info.h"
#include "propagation/decision.h"

namespace dtensor::internal {

// The key of a call in the strategy cache. For calls whose arguments are not on a stack, too:
//
//   CallKey key(info);
//   append_hints(key.words, ...);  // call_hints.h
//   for all arguments, in schema order: their spec's id, or key.add(i, value);
class CallKey {
 public:
  explicit CallKey(const OpInfo& info);
  // The operator's present rule; null: it has none, as composite operators.
  const std::shared_ptr<const OpRule>& rule() const { return resolved_.rule; }
  // Argument i, which is no tensor, as far as decisions depend on it.
  void add(size_t i, const c10::IValue& value);
  void add(size_t i, const at::Scalar& number);
  void add(size_t i, c10::ArrayRef<int64_t> ints);

  CacheKey words;

 private:
  void add_int(size_t i, int64_t value);
  void add_double(size_t i, double value);

  const OpInfo::Resolved& resolved_;
};

struct Decided {
  std::shared_ptr<const Decision> decision;
  bool made_now = false;  // not cached yet
  CacheKey key = {};      // of a new decision
  at::Tensor leaf = {};   // leaf_of_gradient()
};

// Finds the hints first. Counts a call that is not computed as given (inner_calls.h). Errors: as propagate(); the
// strategy cache is frozen; in a LossParallel scope (c10::Error), the decision moves scores away from their shards of
// classes: the text names operator, argument, layouts and bytes. REQUIRES: there is a rule.
Decided decide_call(const OpInfo& info, Inputs& in, c10::ArrayRef<c10::IValue> args);
// Caches a new decision. Call it once the first results have passed their check.
void keep_decision(const Inputs& in, const Decided& decided);

}  // namespace dtensor::internal
