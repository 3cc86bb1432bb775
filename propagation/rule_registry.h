// The registry of every operator's rule or handler.
//
// The library's own are defined next to their code in ops/, one RuleFamily per file; a program adds its own to
// RuleRegistry::instance().
#pragma once

#include <ATen/core/stack.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "propagation/op_rule.h"

namespace dtensor {

// Replaces the whole treatment of an operator: gets the global arguments on the stack, leaves global results. For
// operators that are not computed on local tensors independently: item(), equal(), norms (composed of other operators),
// ... Runs below autograd, where parameters among the arguments are registered (prepare_parameters()) before it, but
// the handler of a composite operator runs above it, instead of the composite's code, and registers the parameters that
// it reads (keep_gradient_layout()).
using Handler = void (*)(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Operators -> rules. Look-up order: "ns::op.overload" (for an out= operator also the overload without out), "ns::op",
// the functional form of an in-place operator, and for operators tagged pointwise in ATen, unless they draw random
// numbers, the default pointwise rule. Thread-safe.
class RuleRegistry {
 public:
  static RuleRegistry& instance();

  // `op`: "aten::sum" for every overload, "aten::sum.dim_IntList" for one. A later rule replaces an earlier one.
  void add(const std::string& op, OpRule rule);
  // Several names, one rule.
  void add(const std::vector<std::string>& ops, const OpRule& rule);
  void set_default_pointwise(OpRule rule);
  std::shared_ptr<const OpRule> find(const c10::OperatorHandle& op) const;  // null: none
  // Changes whenever a rule is added; cached decisions of an older generation are dropped.
  static uint64_t generation() { return generation_.load(std::memory_order_acquire); }

  // A rule or a handler, and its origin.
  struct Entry {
    std::string op;  // as it was given to add()
    enum class Kind { kRule, kHandler } kind = Kind::kRule;
    std::string file;  // "ops/reduction/softmax.cc": the file of its RuleFamily; empty: the program added it
  };
  std::vector<Entry> entries() const;  // by `op`, a rule before a handler. docs/tables/operators.md lists the library's

  // Names as for add(). An operator with a handler may have a rule, too, for the handler's own use. Add it before the
  // operator is first called.
  void add_handler(const std::string& op, Handler handler);
  // The same for a composite operator, for calls above autograd with an argument that has uneven shards
  // (Spec::has_uneven_shards()). Otherwise the operator's own code runs.
  void add_handler_of_uneven(const std::string& op, Handler handler);
  struct FoundHandler {
    Handler handler = nullptr;  // null: none
    bool uneven_only = false;
  };
  FoundHandler find_handler(const c10::OperatorHandle& op) const;

 private:
  RuleRegistry();
  static std::atomic<uint64_t> generation_;
  struct State;
  std::shared_ptr<State> state_;
};

// The rules and handlers of one source file, as a static object next to their code:
//
//   const RuleFamily softmax_rules("softmax", [](RuleRegistry& registry) { registry.add("aten::_softmax", ...); });
//
// RuleRegistry::instance() adds all families on its first use, in the order of their names. Two families that add the
// same are an error.
class RuleFamily {
 public:
  RuleFamily(const char* name, void (*add)(RuleRegistry& registry), const char* file = __builtin_FILE());
};

}  // namespace dtensor
