#include "dtensor/predict_step.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/algorithm/container.h"
#include "comm/comm_call.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/analysis/group_level.h"
#include "dtensor/analysis/step_sum.h"
#include "mesh/memory_meter.h"
#include "plan/cost_model.h"

namespace dtensor {
using namespace internal;

namespace {

// Backward runs on threads of its own, one at a time.
class StepListener final : public CommListener {
 public:
  // `spans`: also in order, with the memory meanwhile; null: not.
  StepListener(const World& world, std::vector<StepSpan>* spans)
      : cost_(cost_model(world)), meter_(world.memory()), spans_(spans) {}
  // The meter has the peak of the step, as without spans.
  ~StepListener() override { meter_.touch(peak_bytes_ - meter_.live_bytes()); }

  void on_comm(const CommEvent&, bool) override {}

  void on_call(const CommEvent& event, const CommView& view, bool before) override {
    if (before) return;
    PredictedCollectives row{event.collective, event.mesh_dims,
                             view.call.group != nullptr && crosses_nodes(*view.call.group, cost_->ranks_per_node)};
    row.seconds = cost_->collective(event.collective, event.group_size, row.between_nodes, event.bytes);
    const std::lock_guard lock(mutex_);
    PredictedCollectives& found = row_like(step_.communication, row);
    ++found.count;
    found.bytes += event.bytes;
    found.seconds += row.seconds;
    add_span(StepSpan::Kind::kCollective, row.name(), event.cause.module_path, event.backward, row.seconds);
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
    add_span(product ? StepSpan::Kind::kProduct : StepSpan::Kind::kOperator, event.op, event.module_path,
             event.backward, seconds);
  }

  // False: no operator ran.
  bool take(StepPrediction& step) {
    const std::lock_guard lock(mutex_);
    step = std::move(step_);
    step.peak_bytes = std::max(peak_bytes_, meter_.peak_bytes());
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

  void add_span(StepSpan::Kind kind, const std::string& name, const std::string& module_path, bool backward,
                double seconds) {
    if (spans_ == nullptr) return;
    const double begin = spans_->empty() ? 0 : spans_->back().end;
    const int64_t most = meter_.peak_bytes();
    meter_.reset_peak();
    peak_bytes_ = std::max(peak_bytes_, most);
    spans_->push_back({kind, name, module_path, backward, begin, begin + seconds, most});
  }

  const std::shared_ptr<const CostModel> cost_;
  MemoryMeter& meter_;
  std::vector<StepSpan>* const spans_;
  std::mutex mutex_;
  StepPrediction step_;     // guarded by mutex_
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
