#include "dtensor/analysis/step_recorder.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "comm/comm_call.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/step_decider.h"
#include "mesh/memory_meter.h"
#include "mesh/world.h"
#include "plan/cost_model.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

class Recorder final : public StepDecider, public CommListener {
 public:
  Recorder(const Overrides& overrides, const std::optional<World>& world) : overrides_(overrides) {
    if (world) note_world(*world);
  }

  uint64_t recording() const override { return recording_; }

  void next() override {
    std::lock_guard lock(mutex_);
    ++index_;
    charged_.clear();
  }

  CostShares charged() const override {
    std::lock_guard lock(mutex_);
    return charged_;
  }
  void charge(CostShares shares) override {
    std::lock_guard lock(mutex_);
    charged_ = std::move(shares);
  }

  std::shared_ptr<const Decision> decide(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                         const std::function<std::shared_ptr<const Decision>()>& usual) override {
    std::shared_ptr<const Decision> decision;
    const auto pin = overrides_.find(index_);
    if (pin != overrides_.end()) {
      decision = find_pinned(call, rule, pin->second);
      if (decision) taken_.insert(index_);
    }
    if (!decision) decision = usual();
    std::lock_guard lock(mutex_);
    note_world(call.mesh.world());
    step_.calls.push_back({index_, call, rule, decision, current_scope().module_path});
    charged_ = {{step_.calls.size() - 1, 1}};
    return decision;
  }

  void on_comm(const CommEvent&, bool) override {}

  void on_call(const CommEvent& event, const CommView& view, bool before) override {
    if (before) return;
    std::lock_guard lock(mutex_);
    if (cost_) return add(event.collective, *view.call.group, event.bytes, charged_);
    step_.began_without = true;
    unpriced_.push_back([this, kind = event.collective, group = *view.call.group, bytes = event.bytes] {
      add(kind, group, bytes, {});
    });
  }

  void on_work(const WorkEvent& event) override {
    std::lock_guard lock(mutex_);
    if (cost_) return add_work(event.flops, event.dtype);
    step_.began_without = true;
    unpriced_.push_back([this, flops = event.flops, dtype = event.dtype] { add_work(flops, dtype); });
  }

  RecordedStep take() {
    if (step_.world) step_.cost.peak_bytes = step_.world->memory().peak_bytes();
    for (const auto& [call, pin] : overrides_) {
      if (taken_.count(call) == 0) step_.missed.push_back(call);
    }
    return std::move(step_);
  }

 private:
  void note_world(const World& world) {
    if (cost_) return;
    step_.world = world;
    step_.world->memory().reset_peak();
    cost_ = cost_model(world);
    for (const auto& add : std::exchange(unpriced_, {})) add();
  }

  void add(Collective kind, const RankGroups& group, int64_t bytes, const CostShares& charged) {
    const double seconds = cost_->collective(kind, group_extent(group, cost_->ranks_per_node), bytes);
    step_.cost.seconds += seconds;
    ++step_.cost.collectives;
    step_.cost.bytes += bytes;
    for (const auto& [call, share] : charged) step_.calls[call].seconds += seconds * share;
  }
  void add_work(double flops, c10::ScalarType dtype) {
    step_.cost.flops += flops;
    step_.cost.seconds += cost_->products(flops, dtype);
  }

  static uint64_t next_recording() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const Overrides& overrides_;
  const uint64_t recording_ = next_recording();
  mutable std::mutex mutex_;
  RecordedStep step_;
  CostShares charged_;
  std::shared_ptr<const CostModel> cost_;
  // Collectives and work while no world, and so no cost model, is known: redistribute() and halos may communicate
  // before the first decided call.
  std::vector<std::function<void()>> unpriced_;
  int64_t index_ = -1;
  std::set<int64_t> taken_;  // calls whose override matched
};

}  // namespace

namespace {

// Begins with 0, where the dispatcher's keys have the address of an operator.
CacheKey key_of(const OpCall& call, const LayoutPin& pin) {
  CacheKey key{0};
  call.context.append_to_key(key);
  for (const SpecPtr& input : call.inputs) key.push_back(input ? input->id() : 0);
  append_text(key, pin.as_called);
  for (const Placements& placements : pin.inputs) append_text(key, to_string(placements));
  return key;
}

}  // namespace

std::vector<Placements> computed_placements(const Decision& decision) {
  std::vector<Placements> placements;
  for (const SpecPtr& spec : decision.computed) placements.push_back(spec ? spec->placements() : Placements());
  return placements;
}

std::shared_ptr<const Decision> find_pinned(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                            const LayoutPin& pin) {
  if (call.to_string() != pin.as_called) return nullptr;
  StrategyCache& cache = strategy_cache(call.mesh.world());
  const CacheKey key = key_of(call, pin);
  if (auto known = cache.find(key)) return known;
  for (PricedDecision& way : propagate_all(call, rule, std::numeric_limits<size_t>::max())) {
    if (computed_placements(*way.decision) != pin.inputs) continue;
    cache.insert(key, way.decision);
    return std::move(way.decision);
  }
  return nullptr;
}

RecordedStep record_step(const std::function<void()>& step, const Overrides& overrides,
                         const std::optional<World>& world) {
  Recorder recorder(overrides, world);
  {
    const ScopeGuard listening([&](Scope& s) { s.listeners.push_back(&recorder); });
    const DispatchScopeGuard deciding([&](DispatchScope& s) { s.step_decider = &recorder; });
    step();
  }
  return recorder.take();
}

}  // namespace dtensor::internal
