#include "dtensor/measure_operators.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "comm/comm_event.h"
#include "comm/scope.h"
#include "comm/work_event.h"

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

// One call, or one element of a call with lists of tensors.
struct Sample {
  std::string op, row;
  double amount = 0;
  double seconds = 0;
};

// Waits until the devices of the world's ranks in this process have done what was started.
void wait_for_devices(const World& world) {
  if (world.device_type() == c10::DeviceType::CPU) return;
  const c10::impl::VirtualGuardImpl guard(world.device_type());
  absl::flat_hash_set<c10::DeviceIndex> done;
  for (const int64_t rank : world.owned_ranks()) {
    const c10::DeviceIndex device = world.device(rank).index();
    if (done.insert(device).second) guard.synchronizeDevice(device);
  }
}

// Backward runs on threads of its own, one at a time.
class Stopwatch final : public CommListener {
 public:
  explicit Stopwatch(const World& world) : world_(world) { restart(); }

  void on_comm(const CommEvent&, bool) override {}
  // Of an operator for which the library communicates, the copies for that are not its own. What the program asked for
  // by itself is no part of the next operator.
  void on_call(const CommEvent& event, const CommView&, bool) override {
    const std::lock_guard lock(mutex_);
    communicated_ = communicated_ || event.cause.implicit;
    if (!event.cause.implicit) restart();
  }
  void on_work(const WorkEvent& event) override {
    const std::lock_guard lock(mutex_);
    const double amount = event.flops > 0 ? event.flops : static_cast<double>(event.bytes);
    const double seconds = elapsed();
    if (event.list_index == 0) {
      share_time();
      left_out_ = communicated_;
      communicated_ = false;
    }
    if (!left_out_) {
      samples_.push_back({event.op, operator_row(event.op, event.flops, event.dtype, event.bytes), amount, seconds});
    }
    restart();
  }

  std::vector<Sample> take() {
    const std::lock_guard lock(mutex_);
    share_time();
    return std::move(samples_);
  }

 private:
  // Among the samples of one call, by their amounts, and to each as much for its start.
  void share_time() {
    constexpr double kStart = 8192;  // bytes
    double seconds = 0, amounts = 0;
    for (size_t i = first_of_call_; i < samples_.size(); ++i)
      seconds += samples_[i].seconds, amounts += kStart + samples_[i].amount;
    for (size_t i = first_of_call_; i < samples_.size(); ++i)
      samples_[i].seconds = seconds * (kStart + samples_[i].amount) / amounts;
    first_of_call_ = samples_.size();
  }
  double elapsed() const {
    wait_for_devices(world_);
    return std::chrono::duration<double>(Clock::now() - last_).count();
  }
  void restart() {
    wait_for_devices(world_);
    last_ = Clock::now();
  }

  const World& world_;
  std::mutex mutex_;
  Clock::time_point last_;                        // guarded by mutex_
  bool communicated_ = false, left_out_ = false;  // since then; the present call; likewise
  std::vector<Sample> samples_;                   // likewise
  size_t first_of_call_ = 0;                      // likewise
};

double median_seconds(std::vector<Sample>& samples) {
  const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end(),
                   [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; });
  return middle->seconds;
}

double mean_seconds(std::vector<Sample>& samples) {
  double seconds = 0;
  for (const Sample& s : samples) seconds += s.seconds;
  return seconds / static_cast<double>(samples.size());
}

// One time for the amounts in each of `sizes` parts between two powers of 2: `seconds_of` those, and their mean amount.
// REQUIRES: the amounts are greater than 0.
std::vector<OperatorTime> by_size(const std::vector<Sample>& samples, double sizes,
                                  double (*seconds_of)(std::vector<Sample>&)) {
  std::map<int64_t, std::vector<Sample>> parts;
  for (const Sample& s : samples) parts[std::llround(sizes * std::log2(s.amount))].push_back(s);
  std::vector<OperatorTime> times;
  for (auto& [size, like] : parts) {
    double amounts = 0;
    for (const Sample& s : like) amounts += s.amount;
    times.push_back({amounts / static_cast<double>(like.size()), seconds_of(like)});
  }
  return times;
}

// The samples of the faster half of several runs, which other programs have disturbed less.
std::vector<Sample> samples_of(const std::function<void()>& step, const World& world, int64_t repetitions) {
  std::vector<std::pair<double, std::vector<Sample>>> runs;
  for (int64_t i = 0; i < repetitions; ++i) {
    Stopwatch stopwatch(world);
    const auto begin = Clock::now();
    {
      const ScopeGuard listening([&](Scope& s) { s.listeners.push_back(&stopwatch); });
      step();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    runs.emplace_back(seconds, stopwatch.take());
  }
  std::stable_sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Sample> samples;
  for (size_t i = 0; 2 * i < runs.size(); ++i)
    samples.insert(samples.end(), runs[i].second.begin(), runs[i].second.end());
  return samples;
}

}  // namespace

OperatorTimes measure_operators(const std::vector<std::function<void()>>& steps, const World& world,
                                int64_t repetitions) {
  TORCH_CHECK_VALUE(!steps.empty(), "[measure_operators] there are no steps");
  for (const auto& step : steps) TORCH_CHECK_VALUE(step, "[measure_operators] a step is an empty function");
  TORCH_CHECK_VALUE(repetitions >= 1, "[measure_operators] `repetitions` is ", repetitions, "; give at least 1");
  TORCH_CHECK_VALUE(world.defined() && world.has_data(), "[measure_operators] the world ",
                    world.defined() ? world.name() : "is undefined",
                    world.defined() ? " is abstract: its operators compute nothing" : "",
                    "; give one with ranks in this process, such as World::local(1)");
  std::map<std::string, std::vector<Sample>> rows;
  for (const auto& step : steps) {
    step();
    for (const Sample& sample : samples_of(step, world, repetitions)) {
      rows[sample.row].push_back(sample);
      if (sample.row == sample.op) rows["other"].push_back(sample);
    }
  }
  OperatorTimes times;
  for (auto& [name, samples] : rows) {
    if (name == "view") {
      // The mean would have the time in which memory of large tensors is freed before views.
      times[name] = {{0, median_seconds(samples)}};
    } else {
      times[name] = name == "other" ? by_size(samples, 0.5, median_seconds) : by_size(samples, 4, mean_seconds);
    }
  }
  return times;
}

}  // namespace dtensor
