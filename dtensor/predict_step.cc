#include "dtensor/predict_step.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <tuple>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/comm_call.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/analysis/group_level.h"
#include "mesh/memory_meter.h"
#include "plan/cost_model.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

auto kind_of(const PredictedCollectives& c) { return std::tie(c.collective, c.mesh_dims, c.between_nodes); }

// Backward runs on threads of its own, one at a time.
class StepListener final : public CommListener {
 public:
  explicit StepListener(const World& world) : cost_(cost_model(world)) {}

  void on_comm(const CommEvent&, bool) override {}

  void on_call(const CommEvent& event, const CommView& view, bool before) override {
    if (before) return;
    PredictedCollectives row{event.collective, event.mesh_dims,
                             view.call.group != nullptr && crosses_nodes(*view.call.group, cost_->ranks_per_node)};
    row.seconds = cost_->collective(event.collective, event.group_size, row.between_nodes, event.bytes);
    const std::lock_guard lock(mutex_);
    auto& rows = step_.communication;
    auto found = absl::c_find_if(rows, [&](const auto& other) { return kind_of(other) == kind_of(row); });
    if (found == rows.end()) found = rows.insert(found, {row.collective, row.mesh_dims, row.between_nodes});
    ++found->count;
    found->bytes += event.bytes;
    found->seconds += row.seconds;
  }

  void on_work(const WorkEvent& event) override {
    const double moving = cost_->traffic(event.bytes), start = cost_->operator_latency;
    const std::lock_guard lock(mutex_);
    ran_ = true;
    if (event.flops == 0 && event.bytes == 0) return;  // views
    ++step_.operators;
    step_.start_seconds += start;
    step_.flops += event.flops;
    step_.memory_traffic += event.bytes;
    if (event.flops > 0) {
      step_.product_seconds += start + std::max(cost_->products(event.flops, event.dtype), moving);
    } else {
      step_.operator_seconds += start + moving;
    }
  }

  // False: no operator ran.
  bool take(StepPrediction& step) {
    const std::lock_guard lock(mutex_);
    step = std::move(step_);
    absl::c_stable_sort(step.communication, [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    return ran_;
  }

 private:
  const std::shared_ptr<const CostModel> cost_;
  std::mutex mutex_;
  StepPrediction step_;  // guarded by mutex_
  bool ran_ = false;     // likewise
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

}  // namespace

std::string PredictedCollectives::name() const {
  return absl::StrCat(std::string(dtensor::to_string(collective)), "(", mesh_dims, ")");
}

double StepPrediction::communication_seconds() const {
  double sum = 0;
  for (const PredictedCollectives& row : communication) sum += row.seconds;
  return sum;
}

std::string StepPrediction::to_string() const {
  std::string text =
      absl::StrFormat("%s a step, at most %s on a rank\n", seconds_text(seconds()), bytes_text(peak_bytes));
  size_t width = 17;
  for (const PredictedCollectives& row : communication) width = std::max(width, row.name().size());
  const auto add = [&](std::string name, const std::string& value) {
    name.resize(width, ' ');
    absl::StrAppend(&text, "  ", name, " ", value, "\n");
  };
  add("matrix products", absl::StrFormat("%s, %.3g FLOP", seconds_text(product_seconds), flops));
  add("other operators", seconds_text(operator_seconds));
  if (start_seconds > 0) add("of which to start", absl::StrFormat("%s, x%d", seconds_text(start_seconds), operators));
  for (const PredictedCollectives& row : communication) {
    add(row.name(), absl::StrFormat("%s, x%d, %s, %s", seconds_text(row.seconds), row.count, bytes_text(row.bytes),
                                    row.between_nodes ? "between nodes" : "within a node"));
  }
  add("memory", absl::StrCat(bytes_text(live_bytes), " before the step"));
  return text;
}

StepPrediction predict_step(const std::function<void()>& step, const World& world) {
  TORCH_CHECK_VALUE(step, "[predict_step] the step is an empty function");
  TORCH_CHECK_VALUE(world.defined(), "[predict_step] the world is undefined");
  StepListener listener(world);
  const int64_t live = world.memory().live_bytes();
  const OwnPeak measuring(world.memory());
  {
    const ScopeGuard listening([&](Scope& s) { s.listeners.push_back(&listener); });
    step();
  }
  StepPrediction prediction;
  const bool ran = listener.take(prediction);
  prediction.live_bytes = live;
  prediction.peak_bytes = world.memory().peak_bytes();
  TORCH_CHECK_VALUE(ran,
                    "[predict_step] the step computes nothing with distributed tensors: distribute its model or "
                    "its data first");
  TORCH_CHECK_VALUE(prediction.peak_bytes > 0, "[predict_step] no tensor of the step is on ", world.name(),
                    ": give the world of their mesh, mesh.world()");
  return prediction;
}

}  // namespace dtensor
