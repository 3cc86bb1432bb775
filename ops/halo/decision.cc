#include "ops/halo/decision.h"

#include <cstring>
#include <string>
#include <utility>

#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "plan/cost_model.h"
#include "plan/cost_policy.h"
#include "plan/largest_part.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"
#include "propagation/propagate.h"
#include "propagation/rule_registry.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

using Key = std::vector<int64_t>;
using DecisionPtr = std::shared_ptr<const HaloDecision>;
using DeclaredRegionPtr = std::shared_ptr<const DeclaredRegion>;

int64_t bits_of(double x) {
  int64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// Every value begins with its type, so that different lists of values never give the same key.
void append(Key& key, const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& t = value.toTensor();
    const bool distributed = t.defined() && is_dtensor(t);
    key.insert(key.end(), {1, distributed ? static_cast<int64_t>(spec_of(t)->id()) : -1});
  } else if (value.isInt() || value.isBool()) {
    key.insert(key.end(), {value.isInt() ? 2 : 3, value.isInt() ? value.toInt() : value.toBool()});
  } else if (value.isDouble()) {
    key.insert(key.end(), {4, bits_of(value.toDouble())});
  } else if (value.isComplexDouble()) {
    const auto z = value.toComplexDouble();
    key.insert(key.end(), {5, bits_of(z.real()), bits_of(z.imag())});
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.insert(key.end(), {6, static_cast<int64_t>(list.size())});
    for (const c10::IValue& x : list) append(key, x);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.insert(key.end(), {7, static_cast<int64_t>(text.size())});
    key.insert(key.end(), text.begin(), text.end());
  } else {
    TORCH_INTERNAL_ASSERT(value.isNone(), "halo exchange: an argument of type ", value.tagKind());
    key.push_back(8);
  }
}

// Of the scope, which no argument shows.
void append(Key& key, const CallContext& context) {
  CacheKey hints;
  context.append_to_key(hints);
  key.insert(key.end(), hints.begin(), hints.end());
}

// By operator, rules, hints, declared width and arguments.
struct HaloMemo : Memo<Key, DecisionPtr, 1024> {};

// Time of the matrix products on a rank, given the parts in the decision.
double product_seconds(const OpCall& call, const Decision& decision, const CostModel& cost) {
  const Flops flops = decision.rule->flops ? decision.rule->flops(call) : Flops();
  if (!flops) return 0;
  std::vector<Shape> parts(call.inputs.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (const SpecPtr& s = decision.computed[i])
      parts[i] = largest_part(s->sizes(), s->mesh().shape(), s->placements());
  }
  return cost.products(flops(parts), dtype_of_flops(call));
}

// Time of the rule's way: to redistribute the inputs, to compute, and to redistribute the result to the layout that
// halos would leave it in. Without the last part, a result in another layout would look as good, although all later
// operators on it and on the input would have to move one of them.
double rule_seconds(const OpCall& call, const Decision& rule, const SpecPtr& result, const CostModel& cost) {
  const double seconds = product_seconds(call, rule, cost) + rule.input_seconds();
  if (rule.outputs[0] == nullptr) return seconds;
  return seconds + seconds_to_move(rule.outputs[0], result->placements());
}

// Null: no request, or one that exceeds the limit.
std::shared_ptr<const HaloPlan> plan_within_limit(const std::optional<HaloRequest>& request, int64_t max_bytes) {
  auto plan = request ? make_halo_plan(*request) : nullptr;
  return plan && plan->peak_bytes <= max_bytes ? plan : nullptr;
}

// Sets what is taken from the boxes of `declared`, if they have all of the next fetch.
void decide_within(HaloDecision& decision, const HaloChoice& choice, const DeclaredRegionPtr& declared,
                   int64_t max_bytes) {
  const SpecPtr& source = declared->plan->source;
  if (choice.request.source != source) return;
  const int64_t boxes = box_bytes(declared->region, *source);
  const auto taken = [&](const HaloRequest& request) {
    auto plan = make_plan_within(request, declared->region);
    return plan && plan->peak_bytes + boxes <= max_bytes ? plan : nullptr;
  };
  // Of a padded tensor, windows are read next: its own parts may lie elsewhere.
  auto later = decision.later ? taken(*choice.later) : nullptr;
  auto now = taken(choice.request);
  const bool lacks = !decision.plan->is_local() || (decision.later && !decision.later->is_local());
  if (!lacks || !(decision.later ? later : now)) return;
  if (!now && decision.plan->peak_bytes + boxes > max_bytes) return;  // parts fetched while the windows keep the boxes
  decision.declared = declared;
  decision.within = std::move(now);
  decision.later_within = std::move(later);
}

// Without `declared` the price decides, and the result is never null. With it, null says that this region cannot serve
// the call.
DecisionPtr decide(const OpCall& call, const DeclaredRegionPtr& declared, const HaloChooser& choose) {
  const auto follow_rule = declared ? nullptr : std::make_shared<const HaloDecision>();
  const auto rule = RuleRegistry::instance().find(call.op);
  const auto by_rule = rule ? propagate(call, rule) : nullptr;
  const auto choice = choose(by_rule.get());
  if (!choice || (by_rule && !by_rule->communicates())) return follow_rule;
  const int64_t max_bytes = call.context.scope.limits.max_bytes;
  auto decision = std::make_shared<HaloDecision>();
  decision->result = choice->result;
  decision->plan = plan_within_limit(choice->request, max_bytes);
  if (!decision->plan) return follow_rule;
  decision->later = plan_within_limit(choice->later, max_bytes);
  if (declared) {
    decide_within(*decision, *choice, declared, max_bytes);
    return decision->declared ? decision : nullptr;
  }
  const auto cost = cost_model(call.mesh.world());
  const auto pays = [&] {
    return decision->plan->seconds + choice->more_seconds + cost->products(choice->flops, dtype_of_flops(call)) <=
           rule_seconds(call, *by_rule, choice->result, *cost);
  };
  if (by_rule && !pays()) return follow_rule;
  auto both = plan_within_limit(choice->both, max_bytes);
  if (both && both->seconds <= kPrefetch * decision->plan->seconds) decision->both = std::move(both);
  return decision;
}

}  // namespace

DecisionPtr decide_halo(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const at::Tensor& source,
                        const HaloChooser& choose) {
  const auto args = torch::jit::last(stack, op.schema().arguments().size());
  std::vector<SpecPtr> specs;
  Key key{static_cast<int64_t>(reinterpret_cast<intptr_t>(&op.schema())),
          static_cast<int64_t>(RuleRegistry::instance().generation())};
  CallContext context;
  context.scope = current_dispatch_scope().hints;
  append(key, context);
  for (const c10::IValue& value : args) {
    append(key, value);
    if (value.isTensor() && value.toTensor().defined()) specs.push_back(spec_of(value.toTensor()));
  }
  const World& world = specs.at(0)->mesh().world();
  const auto decided = [&](const Key& k, const DeclaredRegionPtr& declared) -> DecisionPtr {
    HaloMemo& memo = world.attachment<HaloMemo>();
    if (auto known = memo.find(k)) return *known;
    LocalGuard guard;  // shape functions make plain tensors, also inside a MeshScope
    OpCall call = OpCall::make(c10::toString(op.operator_name()), specs, args.vec());
    call.context = context;
    auto decision = decide(call, declared, choose);
    if (!declared && decision->plan) strategy_cache(world).check_open(call);
    memo.insert(k, decision, specs);
    return decision;
  };
  if (const auto declared = source.defined() ? declared_region(source, /*periodic=*/true) : nullptr) {
    Key of_width = key;
    of_width.insert(of_width.end(), {9, static_cast<int64_t>(declared->width.size())});
    of_width.insert(of_width.end(), declared->width.begin(), declared->width.end());
    if (auto within = decided(of_width, declared)) return within;
  }
  return decided(key, nullptr);
}

}  // namespace dtensor::internal
