#include "dtensor/predict_step.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "comm/comm_call.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/analysis/step_sum.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "mesh/memory_meter.h"
#include "plan/cost_model.h"

namespace dtensor {
using namespace internal;

namespace {

// When operators and collectives of a rank run: operators one after the other, and collectives at each level, too.
class StepClock {
 public:
  // Both set begin and end of `span`.
  void compute(double seconds, StepSpan& span) {
    span.begin = now_;
    span.end = now_ += seconds;
  }
  // `begun`: see CommView; 0: operators wait for it.
  void communicate(bool between_nodes, double seconds, uint64_t begun, StepSpan& span) {
    double& links = links_busy_until_[between_nodes ? 1 : 0];
    span.begin = std::max(now_, links);
    span.end = links = span.begin + seconds;
    if (begun == 0) {
      now_ = span.end;
    } else {
      is_overlapping_ = true;
      ends_of_begun_.emplace(begun, span.end);
    }
  }
  void wait(uint64_t begun) {
    const auto found = ends_of_begun_.find(begun);
    if (found == ends_of_begun_.end()) return;  // begun before the step
    now_ = std::max(now_, found->second);
    ends_of_begun_.erase(found);
  }
  // By how much the step is shorter than `seconds`, the sum of all that ran.
  double overlapped(double seconds) const {
    if (!is_overlapping_) return 0;
    return std::max(seconds - std::max({now_, links_busy_until_[0], links_busy_until_[1]}), 0.);
  }

 private:
  double now_ = 0;                                       // where the next operator begins
  double links_busy_until_[2] = {0, 0};                  // within nodes, between nodes
  absl::flat_hash_map<uint64_t, double> ends_of_begun_;  // of collectives that nothing has waited for
  bool is_overlapping_ = false;
};

// Backward runs on threads of its own, one at a time.
class StepListener final : public CommListener {
 public:
  // `spans`: also in order, with the memory meanwhile; null: not.
  StepListener(const World& world, std::vector<StepSpan>* spans)
      : world_(world), cost_(cost_model(world)), meter_(world.memory()), spans_(spans) {}
  // The meter has the peak of the step, as without spans.
  ~StepListener() override { meter_.touch(peak_bytes_ - meter_.live_bytes()); }

  void on_comm(const CommEvent&, bool) override {}

  void on_call(const CommEvent& event, const CommView& view, bool before) override {
    if (before) return;
    const GroupExtent group = group_extent(*view.call.group, cost_->ranks_per_node);
    PredictedCollectives row{event.collective, event.mesh_dims, group.crosses_nodes()};
    row.seconds = cost_->collective(event.collective, group, event.bytes);
    const std::lock_guard lock(mutex_);
    PredictedCollectives& found = row_like(step_.communication, row);
    ++found.count;
    found.bytes += event.bytes;
    found.seconds += row.seconds;
    StepSpan span{StepSpan::Kind::kCollective, row.name(), event.cause.module_path, event.backward};
    span.beside = view.begun != 0;
    clock_.communicate(row.between_nodes, row.seconds, view.begun, span);
    add_span(std::move(span));
  }

  void on_wait(uint64_t begun) override {
    const std::lock_guard lock(mutex_);
    clock_.wait(begun);
  }

  void on_work(const WorkEvent& event) override {
    const std::lock_guard lock(mutex_);
    ran_ = true;
    const double seconds = seconds_of(event);
    const bool view = event.flops == 0 && event.bytes == 0, product = event.flops > 0;
    if (view && seconds == 0) return;
    step_.flops += event.flops;
    step_.memory_traffic += event.bytes;
    (product ? step_.product_seconds : step_.operator_seconds) += seconds;
    StepSpan span{product ? StepSpan::Kind::kProduct : StepSpan::Kind::kOperator, event.op, event.module_path,
                  event.backward};
    clock_.compute(seconds, span);
    add_span(std::move(span));
  }

  // False: no operator ran.
  bool take(StepPrediction& step) {
    const std::lock_guard lock(mutex_);
    step = std::move(step_);
    step.peak_bytes = std::max(peak_bytes_, meter_.peak_bytes());
    step.overlapped_seconds = clock_.overlapped(step.seconds());
    absl::c_stable_sort(step.communication, [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    return ran_;
  }

 private:
  // The measured time, if there is one. Else the start, and the longer of arithmetic and traffic; nothing for a view.
  // Products are measured for their arithmetic: a large matrix may take longer to read.
  double seconds_of(const WorkEvent& event) {
    const double start = cost_->operator_latency, moving = cost_->traffic(event.bytes);
    if (const auto measured =
            measured_seconds(cost_->operators, event.op, event.flops, event.dtype, event.bytes, start))
      return event.flops > 0 ? std::max(*measured, start + moving) : *measured;
    if (event.flops == 0 && event.bytes == 0) return 0;
    ++step_.operators;
    step_.start_seconds += start;
    return start + (event.flops > 0 ? std::max(cost_->products(event.flops, event.dtype), moving) : moving);
  }

  void add_span(StepSpan span) {
    if (spans_ == nullptr) return;
    span.peak_bytes = meter_.peak_bytes();
    span.gathered_bytes = gathered_bytes(world_);
    meter_.reset_peak();
    peak_bytes_ = std::max(peak_bytes_, span.peak_bytes);
    spans_->push_back(std::move(span));
  }

  const World& world_;
  const std::shared_ptr<const CostModel> cost_;
  MemoryMeter& meter_;
  std::vector<StepSpan>* const spans_;
  std::mutex mutex_;
  StepClock clock_;         // guarded by mutex_
  StepPrediction step_;     // likewise
  bool ran_ = false;        // likewise
  int64_t peak_bytes_ = 0;  // of the spans; likewise
};

// Measures a peak of its own. The meter's user finds the larger of the former peak and the new one.
class OwnPeak {
 public:
  explicit OwnPeak(MemoryMeter& meter) : meter_(meter), before_(meter.peak_bytes()) { meter_.reset_peak(); }
  ~OwnPeak() { meter_.touch(before_ - meter_.live_bytes()); }
  OwnPeak(const OwnPeak&) = delete;
  OwnPeak& operator=(const OwnPeak&) = delete;

 private:
  MemoryMeter& meter_;
  const int64_t before_;
};

// `spans`: where the operators and collectives go; null: nowhere. `function`: for errors.
StepPrediction run_priced(const char* function, const std::function<void()>& step, const World& world,
                          std::vector<StepSpan>* spans) {
  TORCH_CHECK_VALUE(step, "[", function, "] the step is an empty function");
  TORCH_CHECK_VALUE(world.defined(), "[", function, "] the world is undefined");
  StepListener listener(world, spans);
  const int64_t live = world.memory().live_bytes();
  const OwnPeak measuring(world.memory());
  {
    const ScopeGuard listening([&](Scope& s) { s.listeners.push_back(&listener); });
    step();
  }
  StepPrediction prediction;
  const bool ran = listener.take(prediction);
  prediction.live_bytes = live;
  TORCH_CHECK_VALUE(ran, "[", function, "] the step computes nothing with distributed tensors: distribute its model ",
                    "or its data first");
  TORCH_CHECK_VALUE(prediction.peak_bytes > 0, "[", function, "] no tensor of the step is on ", world.name(),
                    ": give the world of their mesh, mesh.world()");
  return prediction;
}

}  // namespace

StepPrediction predict_step(const std::function<void()>& step, const World& world) {
  return run_priced("predict_step", step, world, nullptr);
}

StepTimeline predict_timeline(const std::function<void()>& step, const World& world) {
  StepTimeline timeline;
  timeline.step = run_priced("predict_timeline", step, world, &timeline.spans);
  return timeline;
}

}  // namespace dtensor
