#include "dtensor/dispatch/internal/decide_call.h"

#include <c10/core/DefaultDtype.h>
#include <c10/util/Exception.h>

#include <bit>
#include <optional>

#include "comm/module_text.h"
#include "comm/scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/internal/call_in_progress.h"
#include "dtensor/dispatch/internal/gradient_target.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_plan.h"
#include "plan/transfer/schedule.h"
#include "propagation/propagate.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

// ------------------------------------------------------------ the key

enum Tag : uint64_t { kNone = 1, kBool, kInt, kDouble, kComplex, kString, kDevice, kIntList, kList, kOther };

// Appends the type of `v` and, unless `type_only`, its contents; lists element by element. Of values that cannot be
// encoded (generators, custom objects) only the type counts.
void append_static(CacheKey& key, const c10::IValue& v, bool type_only) {
  if (v.isNone()) {
    key.push_back(kNone);
  } else if (v.isBool()) {
    key.push_back(kBool);
    if (!type_only) key.push_back(v.toBool());
  } else if (v.isInt()) {
    key.push_back(kInt);
    if (!type_only) key.push_back(static_cast<uint64_t>(v.toInt()));
  } else if (v.isDouble()) {
    key.push_back(kDouble);
    if (!type_only) key.push_back(std::bit_cast<uint64_t>(v.toDouble()));
  } else if (v.isComplexDouble()) {
    key.push_back(kComplex);
    if (!type_only) {
      key.push_back(std::bit_cast<uint64_t>(v.toComplexDouble().real()));
      key.push_back(std::bit_cast<uint64_t>(v.toComplexDouble().imag()));
    }
  } else if (v.isString()) {
    key.push_back(kString);
    if (!type_only) append_text(key, v.toStringRef());
  } else if (v.isDevice()) {
    key.push_back(kDevice);
    if (!type_only)
      key.push_back(static_cast<uint64_t>(v.toDevice().type()) << 8 | static_cast<uint8_t>(v.toDevice().index()));
  } else if (v.isIntList()) {
    key.push_back(kIntList);
    const auto list = v.toIntList();
    key.push_back(list.size());
    if (!type_only) {
      for (int64_t x : list) key.push_back(static_cast<uint64_t>(x));
    }
  } else if (v.isList()) {
    key.push_back(kList);
    const auto list = v.toListRef();
    key.push_back(list.size());
    for (const auto& x : list) append_static(key, x, type_only);
  } else {
    key.push_back(kOther);
  }
}

// Appends the class of a number whose value is otherwise irrelevant: whether it is finite, and for a divisor whether it
// is 0.
void append_class(CacheKey& key, NumberClass number, bool divisor) {
  if (number == NumberClass::kZero && !divisor) number = NumberClass::kOrdinary;
  key.push_back(static_cast<uint64_t>(number));
}

// ------------------------------------------------------------ what LossParallel forbids (scopes.h)

bool leaves_shards(const RedistributePlan& plan, int64_t class_dim) {
  if (plan.is_local()) return false;
  const Placements &from = plan.from.placements(), &to = plan.to.placements();
  for (int64_t m = 0; m < plan.from.mesh().ndim(); ++m) {
    if (plan.from.mesh().size(m) > 1 && from[m].is_sharded_on(class_dim) && to[m] != from[m]) return true;
  }
  return false;
}

// With ScopeHints::keep_class_shards. Error (c10::Error): the decision moves an input with scores, or with their
// gradient, whose classes (OpRule::class_dim) are sharded, away from these shards.
void check_class_shards(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                        const Decision& decision) {
  if (!in.context.scope.keep_class_shards || !decision.rule->class_dim) return;
  const OpCall call = make_call(info, in, args);
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const auto& plan = decision.input_plans[k];
    const auto class_dim = plan ? decision.rule->class_dim(call, static_cast<int>(k)) : std::nullopt;
    if (!class_dim || !leaves_shards(*plan, *class_dim)) continue;
    const std::string module = module_of_call(in.tensors);
    TORCH_CHECK(
        false, info.name, ": argument '", arg_name(info, in, static_cast<int>(k)),
        "' would leave its shards of classes, ", plan->tensor.bytes(), " bytes: ", to_string(*layout_change_of(*plan)),
        module.empty() ? "" : ", " + in_module(module, "in module '", "'"), in_backward() ? ", in backward" : "",
        ". LossParallel keeps scores and their gradients where they are: shard the classes by Shard, not by "
        "StridedShard, on mesh dims over which no argument is Partial or sharded along another dim, or redistribute() "
        "where you mean to.");
  }
}

// ------------------------------------------------------------ the decision

// The operator, specs, context, and the other arguments as far as decisions depend on them.
CallKey make_key(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  CallKey key(info);
  in.context.append_to_key(key.words);
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgSlot& slot = in.slots[i];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      key.add(i, args[i]);
      continue;
    }
    if (slot.kind == ArgSlot::Kind::kTensorList) key.words.push_back(slot.count);
    for (int k = slot.first; k < slot.first + slot.count; ++k) {
      key.words.push_back(in.tensors[k].defined() ? spec_of(in.tensors[k])->id() : 0);
    }
  }
  return key;
}

// From the cache, or new.
Decided decide(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  StrategyCache& cache = strategy_cache(in.mesh.world());
  CallKey key = make_key(info, in, args);
  auto decision = cache.find(key.words);
  if (decision) return {std::move(decision)};
  const OpCall call = make_call(info, in, args);
  LocalGuard guard;  // shape functions make plain tensors, also inside a MeshScope
  decision = propagate(call, key.rule());
  cache.check_open(call);
  return {std::move(decision), true, std::move(key.words)};
}

// Whether the operator itself is called with the local tensors of the inputs as they are. (Views' sizes may be local.)
bool computes_as_given(const OpInfo& info, const Decision& decision) {
  return !decision.moves_inputs() &&
         (decision.calls_operator() || (decision.rule->local_calls_operator && info.is_view));
}

}  // namespace

[[gnu::hot]] CallKey::CallKey(const OpInfo& info) : resolved_(info.resolve()) {
  words.push_back(reinterpret_cast<uintptr_t>(&resolved_));  // of this operator and generation of rules alone
  words.push_back(
      static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));  // what integers divided by integers become
}

[[gnu::hot]] void CallKey::add_int(size_t i, int64_t value) {
  words.push_back(kInt);
  if (!resolved_.value_free[i]) return words.push_back(static_cast<uint64_t>(value));
  append_class(words, value == 0 ? NumberClass::kZero : NumberClass::kOrdinary, resolved_.divisor[i]);
}

void CallKey::add_double(size_t i, double value) {
  words.push_back(kDouble);
  if (!resolved_.value_free[i]) return words.push_back(std::bit_cast<uint64_t>(value));
  append_class(words, number_class(value), resolved_.divisor[i]);
}

void CallKey::add(size_t i, const c10::IValue& value) {
  if (value.isInt()) return add_int(i, value.toInt());
  if (value.isDouble()) return add_double(i, value.toDouble());
  append_static(words, value, resolved_.value_free[i]);
  if (resolved_.value_free[i]) append_class(words, number_class(value), resolved_.divisor[i]);
}

[[gnu::hot]] void CallKey::add(size_t i, const at::Scalar& number) {
  if (!number.isSymbolic()) {
    if (number.type() == c10::ScalarType::Long) return add_int(i, number.toLong());
    if (number.isFloatingPoint()) return add_double(i, number.toDouble());
  }
  add(i, c10::IValue(number));
}

[[gnu::hot]] void CallKey::add(size_t i, c10::ArrayRef<int64_t> ints) {
  if (resolved_.value_free[i]) return add(i, c10::IValue(ints));
  words.push_back(kIntList);
  words.push_back(ints.size());
  for (const int64_t x : ints) words.push_back(static_cast<uint64_t>(x));
}

Decided decide_call(const OpInfo& info, Inputs& in, c10::ArrayRef<c10::IValue> args) {
  const std::shared_ptr<const OpRule>& rule = info.rule();
  const auto inputs = in.pointers();
  find_hints(info, {inputs.data(), inputs.size()}, in.context);
  at::Tensor leaf;
  if (in_backward()) {
    leaf = leaf_of_gradient(*rule);
    in.context.gradient_target = find_gradient_target(info, leaf, in);
  }
  Decided decided;
  if (StepDecider* decider = CallInProgress::step_decider(); decider == nullptr) {
    decided = decide(info, in, args);
  } else {
    auto decision = decider->decide(make_call(info, in, args), rule, [&] {
      decided = decide(info, in, args);
      return decided.decision;
    });
    if (decision != decided.decision) decided = {std::move(decision)};
  }
  decided.leaf = std::move(leaf);
  check_class_shards(info, in, args, *decided.decision);
  if (!computes_as_given(info, *decided.decision)) count_otherwise();
  return decided;
}

void keep_decision(const Inputs& in, const Decided& decided) {
  if (!decided.made_now) return;
  strategy_cache(in.mesh.world()).insert(decided.key, decided.decision);
}

}  // namespace dtensor::internal
