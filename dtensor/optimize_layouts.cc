#include "dtensor/optimize_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/extend/call_sites.h"
#include "dtensor/internal/step_recorder.h"

namespace dtensor {
namespace {

constexpr size_t kMostWays = 6;      // to compute a call that are tried
constexpr double kLeastGain = 1e-4;  // of a step that a pin must spare

Overrides overrides_of(const std::vector<LayoutPin>& pins) {
  Overrides overrides;
  for (const LayoutPin& pin : pins) overrides.emplace(pin.call, pin);
  return overrides;
}

RecordedStep first_run(const std::function<void()>& step, double flops_per_second, const char* function) {
  RecordedStep recorded = record_step(step, {}, flops_per_second);
  TORCH_CHECK_VALUE(!recorded.calls.empty(), "[", function,
                    "] the step computes nothing with distributed tensors: distribute its model or its data first");
  return recorded;
}

// Runs a step with other decisions than usual, and keeps what is better.
class Optimizer {
 public:
  Optimizer(const std::function<void()>& step, const OptimizeLayoutsOptions& options)
      : step_(step), options_(options) {}

  LayoutPlan run() {
    present_ = first_run(step_, options_.flops_per_second, "optimize_layouts");
    plan_.trials = 1;
    plan_.before = plan_.after = present_.cost;
    while (!is_exhausted() && improve()) {
    }
    return std::move(plan_);
  }

 private:
  bool is_exhausted() const { return plan_.trials >= options_.max_trials; }

  // Calls whose collectives take longest first; the others may leave them something else to do.
  std::vector<size_t> order() const {
    std::vector<size_t> order(present_.calls.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return present_.calls[a].seconds > present_.calls[b].seconds; });
    return order;
  }

  // One look at every call. False: nothing was better.
  bool improve() {
    bool improved = false;
    for (const size_t i : order()) {
      if (is_exhausted() || i >= present_.calls.size()) break;
      improved = try_call(i) || improved;
    }
    return improved;
  }

  bool try_call(size_t i) {
    const RecordedCall call = present_.calls[i];
    const std::vector<Placements> present = computed_placements(*call.decision);
    bool improved = false;
    for (const PricedDecision& way : propagate_all(call.call, call.rule, kMostWays)) {
      std::vector<Placements> inputs = computed_placements(*way.decision);
      if (inputs == present || way.seconds > plan_.after.seconds || is_exhausted()) continue;
      improved = try_pin({call.index, call.call.to_string(), std::move(inputs)}) || improved;
    }
    return improved;
  }

  bool try_pin(LayoutPin pin) {
    std::vector<LayoutPin> pins = plan_.pins;
    const auto is_other = [&](const LayoutPin& p) { return p.call != pin.call; };
    pins.erase(std::partition(pins.begin(), pins.end(), is_other), pins.end());
    pins.push_back(std::move(pin));
    ++plan_.trials;
    int64_t missed = 0;
    RecordedStep recorded;
    try {
      recorded = record_step(step_, overrides_of(pins), options_.flops_per_second, &missed);
    } catch (const c10::Error&) {
      return false;
    }
    if (options_.progress) options_.progress(plan_.trials, std::min(recorded.cost.seconds, plan_.after.seconds));
    const bool fits = recorded.cost.peak_bytes <= options_.max_bytes;
    const double gain = plan_.after.seconds - recorded.cost.seconds;
    if (missed > 0 || !fits || gain < kLeastGain * plan_.before.seconds) return false;
    pins.back().seconds = gain;
    plan_.pins = std::move(pins);
    plan_.after = recorded.cost;
    present_ = std::move(recorded);
    return true;
  }

  const std::function<void()>& step_;
  const OptimizeLayoutsOptions& options_;
  RecordedStep present_;
  LayoutPlan plan_;
};

}  // namespace

LayoutPlan optimize_layouts(const std::function<void()>& step, const OptimizeLayoutsOptions& options) {
  return Optimizer(step, options).run();
}

std::string advise(const std::function<void()>& step, int64_t most) {
  RecordedStep recorded = first_run(step, OptimizeLayoutsOptions().flops_per_second, "advise");
  std::stable_sort(recorded.calls.begin(), recorded.calls.end(),
                   [](const RecordedCall& a, const RecordedCall& b) { return a.seconds > b.seconds; });
  std::string text = absl::StrCat("the step: ", recorded.cost.to_string(), "\n");
  for (const RecordedCall& call : recorded.calls) {
    if (most-- <= 0 || call.seconds <= 0) break;
    absl::StrAppendFormat(&text, "%.1f us%s%s: %s\n", call.seconds * 1e6, call.module_path.empty() ? "" : " in ",
                          call.module_path, call.decision->explain(call.call));
    const auto present = computed_placements(*call.decision);
    for (const PricedDecision& way : propagate_all(call.call, call.rule, kMostWays)) {
      if (computed_placements(*way.decision) == present) continue;
      absl::StrAppendFormat(&text, "  next best, %.1f us: %s\n", way.seconds * 1e6, way.decision->explain(call.call));
      break;
    }
  }
  return text;
}

class PinnedLayouts::Sites final : public CallSites {
 public:
  explicit Sites(const LayoutPlan& plan) : overrides_(overrides_of(plan.pins)) {}

  void next() override { ++index_; }

  std::shared_ptr<const Decision> decide(const OpCall& call, const std::shared_ptr<const OpRule>& rule,
                                         const std::function<std::shared_ptr<const Decision>()>& usual) override {
    const auto pin = overrides_.find(index_);
    if (pin == overrides_.end()) return usual();
    auto decision = find_pinned(call, rule, pin->second);
    if (!decision) return usual();
    ++taken_;
    return decision;
  }

  int64_t missed() const { return static_cast<int64_t>(overrides_.size()) - taken_; }

 private:
  const Overrides overrides_;
  std::atomic<int64_t> index_{-1}, taken_{0};
};

PinnedLayouts::PinnedLayouts(const LayoutPlan& plan)
    : sites_(std::make_unique<Sites>(plan)), guard_([this](DispatchScope& s) { s.call_sites = sites_.get(); }) {}

PinnedLayouts::~PinnedLayouts() = default;

int64_t PinnedLayouts::missed() const { return sites_->missed(); }

}  // namespace dtensor
