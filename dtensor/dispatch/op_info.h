// The call-independent facts on an operator: its arguments by kind, the arguments it writes to, its rule or handler.
// Computed once per operator.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "propagation/rule_registry.h"

namespace dtensor::internal {

struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);

  struct Arg {
    using Kind = ArgSlot::Kind;
    Kind kind = Kind::kStatic;
    bool written = false;
    bool out = false;          // an out= argument
    bool overwritten = false;  // its previous value is ignored
  };

  c10::OperatorHandle op;
  std::string name;  // "aten::mm", "aten::sum.dim_IntList"
  std::vector<Arg> args;
  std::vector<int> written_inputs;  // per return: the schema argument it aliases and writes, or -1
  bool is_view = false;             // a result may share memory with the first tensor argument, without writing to it
  bool one_rank_at_a_time =
      false;                   // views, as they take no time, and random operators, which draw in the order of ranks
  bool always_shares = false;  // a view that shares memory on every rank, never a copy
  bool composite_implicit = false;
  bool has_outs = false;
  bool pointwise = false;     // at::Tag::pointwise
  bool makes_tensor = false;  // a factory: no tensor argument, returns one Tensor
  int device_arg = -1;
  Handler handler = nullptr;
  bool handles_uneven_only = false;  // the handler, of a composite operator, is for arguments with uneven shards

  // The present rule; null: none. Looked up again after rules were added. Valid for the life of the process.
  const std::shared_ptr<const OpRule>& rule() const { return resolve().rule; }

 private:
  friend class CallKey;  // internal/decide_call.h

  // A rule, and what keys of calls need of it. Not copied: these keys have its address.
  struct Resolved {
    Resolved() = default;
    Resolved(const Resolved&) = delete;
    Resolved& operator=(const Resolved&) = delete;

    std::shared_ptr<const OpRule> rule;
    // Per schema argument; bytes, which are read faster than bits.
    std::vector<uint8_t> value_free, divisor;
    uint64_t generation = 0;
  };
  // One object per generation of rules.
  const Resolved& resolve() const {
    const Resolved* current = resolved_.load(std::memory_order_acquire);
    return current != nullptr && current->generation == RuleRegistry::generation() ? *current : resolve_again();
  }
  const Resolved& resolve_again() const;
  mutable std::atomic<const Resolved*> resolved_{nullptr};  // never freed, as other threads may use an older one
};

// Cached per operator, for the life of the process.
const OpInfo& op_info(const c10::OperatorHandle& op);

}  // namespace dtensor::internal
