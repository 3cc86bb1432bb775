#include "dtensor/optimize_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "dtensor/analysis/step_recorder.h"
#include "dtensor/tensor/step_decider.h"
#include "plan/redistribute_plan.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kMostWays = 6;  // ways to compute a call that are tried
constexpr int64_t kMostAdviceTrials = 200;
constexpr double kLeastGain = 1e-4;  // fraction of the step's time that a pin must save

Overrides overrides_of(const std::vector<LayoutPin>& pins) {
  Overrides overrides;
  for (const LayoutPin& pin : pins) overrides.emplace(pin.call, pin);
  return overrides;
}

RecordedStep first_run(const std::function<void()>& step, const char* function) {
  RecordedStep recorded = record_step(step, {});
  // Again, so that its peak of the memory is of the whole step, as in trials.
  if (recorded.began_without && recorded.world) recorded = record_step(step, {}, recorded.world);
  TORCH_CHECK_VALUE(!recorded.calls.empty(), "[", function,
                    "] the step computes nothing with distributed tensors: distribute its model or its data first");
  return recorded;
}

bool is_same_call(const RecordedCall& a, const RecordedCall& b) {
  return a.call.to_string() == b.call.to_string() &&
         computed_placements(*a.decision) == computed_placements(*b.decision);
}

LayoutPin pin_of(const RecordedCall& call, const Decision& decision) {
  return {call.index, call.call.to_string(), computed_placements(decision)};
}

// Runs a step with other than the usual decisions, and keeps improvements.
class Optimizer {
 public:
  Optimizer(const std::function<void()>& step, const OptimizeLayoutsOptions& options)
      : step_(step), options_(options) {}

  // The change that gains most first. Then calls that repeat, since a model's layers gain or lose alike; then single
  // calls; if none improves the step, one call together with another that gets more expensive by it, or whose result it
  // moves. An improvement may enable earlier changes, so the search restarts.
  LayoutPlan run() {
    start(first_run(step_, "optimize_layouts"));
    keep_best_change(options_.max_trials / 2);
    while (!is_exhausted() && (improve(Change::kAllAlike) || improve(Change::kOne) || improve(Change::kTwo))) {
    }
    return std::move(plan_);
  }

  // The change of one call, and of those that are alike, with which the step, recorded as the engine decides it, is
  // fastest. Without pins: none that was tried makes it faster. `all`: whether all were tried.
  LayoutPlan best_change(RecordedStep recorded, bool& all) {
    start(std::move(recorded));
    all = keep_best_change(options_.max_trials);
    return std::move(plan_);
  }

 private:
  enum class Change { kAllAlike, kOne, kTwo };
  static constexpr size_t kMostFollowers = 2;

  void start(RecordedStep recorded) {
    present_ = std::move(recorded);
    plan_.trials = 1;
    plan_.before = plan_.after = present_.cost;
    least_ = present_.cost.seconds;
  }

  // False: there were more to try than `max_trials` allow.
  bool keep_best_change(int64_t max_trials) {
    bool all = true;
    std::vector<LayoutPin> best;
    std::optional<RecordedStep> best_step;
    absl::flat_hash_set<std::string> seen;  // kinds of calls
    for (const size_t i : order()) {
      if (!seen.insert(present_.calls[i].call.to_string()).second) continue;
      for (const LayoutPin& way : other_ways(present_.calls[i])) {
        all = plan_.trials < max_trials;
        if (!all) break;
        std::vector<LayoutPin> pins = of_all_alike(i, way);
        std::optional<RecordedStep> step = trial(pins);
        if (!step || (best_step && step->cost.seconds >= best_step->cost.seconds)) continue;
        best = std::move(pins);
        best_step = std::move(step);
      }
    }
    if (best_step) keep_if_better(std::move(best), std::move(*best_step));
    return all;
  }

  // `way` for call `i` and those that are alike.
  std::vector<LayoutPin> of_all_alike(size_t i, const LayoutPin& way) const {
    std::vector<LayoutPin> pins;
    for (const RecordedCall& other : present_.calls) {
      if (!is_same_call(other, present_.calls[i])) continue;
      pins.push_back(way);
      pins.back().call = other.index;
    }
    return pins;
  }

  bool is_exhausted() const { return plan_.trials >= options_.max_trials; }

  // Calls with the longest collectives first.
  std::vector<size_t> order() const {
    std::vector<size_t> order(present_.calls.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return present_.calls[a].seconds > present_.calls[b].seconds; });
    return order;
  }

  // Tries every call once. False: no improvement.
  bool improve(Change change) {
    bool improved = false;
    absl::flat_hash_set<std::string> seen;  // kinds of calls
    for (const size_t i : order()) {
      if (is_exhausted() || i >= present_.calls.size()) break;
      if (change == Change::kAllAlike && !seen.insert(present_.calls[i].call.to_string()).second) continue;
      improved = try_call(i, change) || improved;
    }
    return improved;
  }

  // The other ways to compute a call, cheapest first.
  std::vector<LayoutPin> other_ways(const RecordedCall& call) const {
    const std::vector<Placements> present = computed_placements(*call.decision);
    std::vector<LayoutPin> ways;
    for (const PricedDecision& way : propagate_all(call.call, call.rule, kMostWays)) {
      LayoutPin pin = pin_of(call, *way.decision);
      if (pin.inputs != present && way.seconds <= plan_.after.seconds) ways.push_back(std::move(pin));
    }
    return ways;
  }

  bool try_call(size_t i, Change change) {
    bool improved = false;
    for (const LayoutPin& way : other_ways(present_.calls[i])) {
      std::vector<LayoutPin> pins = {way};
      if (change == Change::kAllAlike) pins = of_all_alike(i, way);
      if (change == Change::kAllAlike && pins.size() < 2) return false;
      std::optional<RecordedStep> step = trial(pins);
      if (!step) continue;
      const bool follow = change == Change::kTwo && !is_better(*step);
      improved = (follow ? try_followers(pins, *step) : keep_if_better(pins, std::move(*step))) || improved;
    }
    return improved;
  }

  // The calls whose cost grew most after the change of call `changed`, each after those that made its moved inputs.
  std::vector<size_t> followers(int64_t changed, const RecordedStep& step) const {
    if (step.calls.size() != present_.calls.size()) return {};
    const auto dearer = [&](size_t k) { return step.calls[k].seconds - present_.calls[k].seconds; };
    std::vector<size_t> dearest;
    for (size_t k = 0; k < step.calls.size(); ++k) {
      if (step.calls[k].index != changed && dearer(k) > 0) dearest.push_back(k);
    }
    std::stable_sort(dearest.begin(), dearest.end(), [&](size_t a, size_t b) { return dearer(a) > dearer(b); });
    if (dearest.size() > kMostFollowers) dearest.resize(kMostFollowers);
    std::vector<size_t> result;
    for (const size_t k : dearest) {
      for (const size_t maker : makers(k, step)) {
        if (step.calls[maker].index != changed) result.push_back(maker);
      }
      result.push_back(k);
    }
    return result;
  }

  // The last calls before `k` whose results have the layouts of its moved inputs.
  static std::vector<size_t> makers(size_t k, const RecordedStep& step) {
    const RecordedCall& call = step.calls[k];
    std::vector<size_t> result;
    for (size_t i = 0; i < call.call.inputs.size(); ++i) {
      if (call.decision->input_plans[i] == nullptr) continue;
      for (size_t before = k; before-- > 0;) {
        const auto& outputs = step.calls[before].decision->outputs;
        if (std::find(outputs.begin(), outputs.end(), call.call.inputs[i]) == outputs.end()) continue;
        result.push_back(before);
        break;
      }
    }
    return result;
  }

  // Tries `pins` together with another call computed in another way.
  bool try_followers(const std::vector<LayoutPin>& pins, const RecordedStep& step) {
    for (const size_t k : followers(pins[0].call, step)) {
      for (const LayoutPin& way : other_ways(step.calls[k])) {
        std::vector<LayoutPin> both = pins;
        both.push_back(way);
        auto together = trial(both);
        if (together && keep_if_better(both, std::move(*together))) return true;
      }
    }
    return false;
  }

  // The plan's pins, with those of the same calls replaced by `pins`.
  std::vector<LayoutPin> with(const std::vector<LayoutPin>& pins) const {
    std::vector<LayoutPin> all;
    for (const LayoutPin& old : plan_.pins) {
      const auto replaces = [&](const LayoutPin& pin) { return pin.call == old.call; };
      if (std::none_of(pins.begin(), pins.end(), replaces)) all.push_back(old);
    }
    all.insert(all.end(), pins.begin(), pins.end());
    return all;
  }

  // The step with `pins` added; nullopt: it cannot be computed so, takes too much memory, or the number of trials is
  // exhausted.
  std::optional<RecordedStep> trial(const std::vector<LayoutPin>& pins) {
    if (is_exhausted()) return std::nullopt;
    ++plan_.trials;
    std::optional<RecordedStep> step;
    try {
      step = record_step(step_, overrides_of(with(pins)), present_.world);
    } catch (const c10::Error&) {
      return std::nullopt;
    }
    const bool fits = step->cost.peak_bytes <= options_.max_bytes;
    if (fits) least_ = std::min(least_, step->cost.seconds);
    if (options_.progress) options_.progress(plan_.trials, least_);
    if (!fits) return std::nullopt;
    return step;
  }

  bool is_better(const RecordedStep& step) const {
    return plan_.after.seconds - step.cost.seconds >= kLeastGain * plan_.before.seconds;
  }

  // Drops pins that others have made superfluous: the step is the same without them.
  bool keep_if_better(std::vector<LayoutPin> pins, RecordedStep step) {
    if (!is_better(step)) return false;
    const auto is_missed = [&](const LayoutPin& pin) {
      return std::find(step.missed.begin(), step.missed.end(), pin.call) != step.missed.end();
    };
    pins.erase(std::remove_if(pins.begin(), pins.end(), is_missed), pins.end());
    if (pins.empty()) return false;  // none of them was used, so that the difference is not theirs
    for (LayoutPin& pin : pins)
      pin.seconds = (plan_.after.seconds - step.cost.seconds) / static_cast<double>(pins.size());
    plan_.pins = with(pins);
    plan_.pins.erase(std::remove_if(plan_.pins.begin(), plan_.pins.end(), is_missed), plan_.pins.end());
    plan_.after = step.cost;
    present_ = std::move(step);
    return true;
  }

  const std::function<void()>& step_;
  const OptimizeLayoutsOptions& options_;
  RecordedStep present_;
  LayoutPlan plan_;
  double least_ = 0;  // seconds of a step so far that fits
};

}  // namespace

LayoutPlan optimize_layouts(const std::function<void()>& step, const OptimizeLayoutsOptions& options) {
  return Optimizer(step, options).run();
}

std::string advise(const std::function<void()>& step, int64_t most) {
  RecordedStep recorded = first_run(step, "advise");
  std::vector<const RecordedCall*> calls;
  for (const RecordedCall& call : recorded.calls) calls.push_back(&call);
  std::stable_sort(calls.begin(), calls.end(), [](const auto* a, const auto* b) { return a->seconds > b->seconds; });
  std::string text = absl::StrCat("the step: ", recorded.cost.to_string(), "\n");
  for (const RecordedCall* call : calls) {
    if (most-- <= 0 || call->seconds <= 0) break;
    absl::StrAppendFormat(&text, "%.1f us%s%s: %s\n", call->seconds * 1e6, call->module_path.empty() ? "" : " in ",
                          call->module_path, call->decision->explain());
    const auto present = computed_placements(*call->decision);
    for (const PricedDecision& way : propagate_all(call->call, call->rule, kMostWays)) {
      if (computed_placements(*way.decision) == present) continue;
      absl::StrAppendFormat(&text, "  next best, %.1f us: %s\n", way.seconds * 1e6, way.decision->explain());
      break;
    }
  }
  OptimizeLayoutsOptions options;
  options.max_trials = kMostAdviceTrials;
  bool all = false;
  const LayoutPlan change = Optimizer(step, options).best_change(std::move(recorded), all);
  const std::string tried = all ? "" : absl::StrCat(" of the first ", change.trials - 1, " that were tried");
  if (change.pins.empty()) {
    absl::StrAppend(&text, "no change of one decision, and of those alike,", tried, " makes the step faster\n");
  } else {
    absl::StrAppend(&text, "the change that gains most", tried, ": ", change.explain());
  }
  return text;
}

class PinnedLayouts::Sites final : public StepDecider {
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
    : sites_(std::make_unique<Sites>(plan)), guard_([this](DispatchScope& s) { s.step_decider = sites_.get(); }) {}

PinnedLayouts::~PinnedLayouts() = default;

int64_t PinnedLayouts::missed() const { return sites_->missed(); }

}  // namespace dtensor
