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

DecisionPtr decide(const OpCall& call, const DeclaredRegionPtr& declared, const HaloChooser& choose) {
  auto decision = std::make_shared<HaloDecision>();
  const auto rule = RuleRegistry::instance().find(call.op);
  const auto by_rule = rule ? propagate(call, rule) : nullptr;
  const auto choice = choose(by_rule.get());
  if (!choice || (by_rule && !by_rule->communicates())) return decision;
  const int64_t max_bytes = call.context.scope.limits.max_bytes;
  auto plan = plan_within_limit(choice->request, max_bytes);
  if (!plan) return decision;
  auto later = plan_within_limit(choice->later, max_bytes);
  const bool lacks = !plan->is_local() || (later && !later->is_local());
  if (declared && lacks && choice->request.source == declared->plan->source) {
    decision->within = make_plan_within(choice->request, declared->region);
    if (later) decision->later_within = make_plan_within(*choice->later, declared->region);
    if (decision->within || decision->later_within) decision->declared = declared;
  }
  const auto cost = cost_model(call.mesh.world());
  const auto pays = [&] {
    return plan->seconds + choice->more_seconds + cost->products(choice->flops, dtype_of_flops(call)) <=
           rule_seconds(call, *by_rule, choice->result, *cost);
  };
  if (by_rule && !decision->declared && !pays()) return decision;
  auto both = decision->declared ? nullptr : plan_within_limit(choice->both, max_bytes);
  if (both && both->seconds <= kPrefetch * plan->seconds) decision->both = std::move(both);
  decision->plan = std::move(plan);
  decision->later = std::move(later);
  decision->result = choice->result;
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
  const auto declared = source.defined() ? declared_region(source, /*periodic=*/true) : nullptr;
  key.push_back(declared != nullptr);
  if (declared) key.insert(key.end(), declared->width.begin(), declared->width.end());
  for (const c10::IValue& value : args) {
    append(key, value);
    if (value.isTensor() && value.toTensor().defined()) specs.push_back(spec_of(value.toTensor()));
  }
  const World& world = specs.at(0)->mesh().world();
  HaloMemo& memo = world.attachment<HaloMemo>();
  if (auto known = memo.find(key)) return *known;

  LocalGuard guard;  // shape functions make plain tensors, also inside a MeshScope
  OpCall call = OpCall::make(c10::toString(op.operator_name()), specs, args.vec());
  call.context = context;
  auto decision = decide(call, declared, choose);
  if (decision->plan && !decision->declared) strategy_cache(world).check_open(call);
  memo.insert(std::move(key), decision, std::move(specs));
  return decision;
}

}  // namespace dtensor::internal
