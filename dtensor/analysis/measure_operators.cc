#include "dtensor/measure_operators.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/comm_event.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/gather_texts.h"
#include "mesh/wait_for_devices.h"
#include "plan/cost_model.h"

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

// When the host is there, or on GPUs when their current streams are: whatever of the two takes longer, starting work or
// doing it, is what a step waits for.
class Moment {
 public:
  explicit Moment(const World& world) : time_(Clock::now()) {
    if (world.device_type() == c10::DeviceType::CPU) return;
    const c10::impl::VirtualGuardImpl guard(world.device_type());
    absl::flat_hash_set<c10::DeviceIndex> seen;
    for (const int64_t rank : world.owned_ranks()) {
      const c10::Device device = world.device(rank);
      if (!seen.insert(device.index()).second) continue;
      events_.emplace_back(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      events_.back().record(guard.getStream(device));
    }
  }
  // Of several devices the longest time. REQUIRES: wait_for_devices() after both.
  double seconds_since(const Moment& before) const {
    if (events_.empty()) return std::chrono::duration<double>(time_ - before.time_).count();
    double milliseconds = 0;
    for (size_t i = 0; i < events_.size(); ++i)
      milliseconds = std::max(milliseconds, before.events_[i].elapsedTime(events_[i]));
    return milliseconds * 1e-3;
  }

 private:
  Clock::time_point time_;
  std::vector<c10::Event> events_;
};

// One call, or one element of a call with lists of tensors.
struct Sample {
  std::string op, row;
  double amount = 0;
  double seconds = 0;
};

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
    const auto end = std::make_shared<const Moment>(world_);
    if (event.list_index == 0) {
      left_out_ = communicated_;
      communicated_ = false;
      calls_.emplace_back();
    }
    if (!left_out_ && !calls_.empty()) {
      const std::string row = operator_row(event.op, event.flops, event.dtype, event.bytes);
      calls_.back().push_back({{event.op, row, amount}, last_, end});
    }
    restart();
  }

  std::vector<Sample> take() {
    const std::lock_guard lock(mutex_);
    wait_for_devices(world_);
    std::vector<Sample> samples;
    for (const std::vector<Timed>& call : calls_) share_time(call, samples);
    calls_.clear();
    return samples;
  }

 private:
  struct Timed {
    Sample sample;
    std::shared_ptr<const Moment> begin, end;
  };

  // Among the samples of one call, by their amounts, and to each as much for its start.
  static void share_time(const std::vector<Timed>& call, std::vector<Sample>& samples) {
    constexpr double kStart = 8192;  // bytes
    double seconds = 0, amounts = 0;
    for (const Timed& t : call) seconds += t.end->seconds_since(*t.begin), amounts += kStart + t.sample.amount;
    for (const Timed& t : call) {
      samples.push_back(t.sample);
      samples.back().seconds = seconds * (kStart + t.sample.amount) / amounts;
    }
  }
  void restart() { last_ = std::make_shared<const Moment>(world_); }

  const World& world_;
  std::mutex mutex_;
  std::shared_ptr<const Moment> last_;            // guarded by mutex_
  bool communicated_ = false, left_out_ = false;  // since then; the present call; likewise
  std::vector<std::vector<Timed>> calls_;         // likewise
};

// A cost model rejects a time of 0, which two events of a GPU around a view may give.
constexpr double kLeastSeconds = 1e-9;

double median_seconds(std::vector<Sample>& samples) {
  const auto middle = samples.begin() + static_cast<int64_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end(),
                   [](const Sample& a, const Sample& b) { return a.seconds < b.seconds; });
  return std::max(middle->seconds, kLeastSeconds);
}

double mean_seconds(std::vector<Sample>& samples) {
  double seconds = 0;
  for (const Sample& s : samples) seconds += s.seconds;
  return std::max(seconds / static_cast<double>(samples.size()), kLeastSeconds);
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
    wait_for_devices(world);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    runs.emplace_back(seconds, stopwatch.take());
  }
  std::stable_sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Sample> samples;
  for (size_t i = 0; 2 * i < runs.size(); ++i)
    samples.insert(samples.end(), runs[i].second.begin(), runs[i].second.end());
  return samples;
}

// The table of the process whose operators took longest, `seconds` in this one, and from the others, the slower ones
// first, the rows and amounts that it lacks. The longest time of each row would be more than any process takes.
OperatorTimes table_of_slowest(const OperatorTimes& own, double seconds, const World& world) {
  CostModel model;
  model.operators = own;
  const std::string mine = absl::StrCat(seconds, "\n", model.to_json());
  std::vector<std::pair<double, std::string>> tables;
  for (const std::string& text : gather_texts(ranks_of(world), mine, "measure_operators")) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 1));
    double total = 0;
    TORCH_CHECK(absl::SimpleAtod(parts.first, &total), "[measure_operators] a process sent '", parts.first,
                "' for its seconds");
    tables.emplace_back(total, parts.second);
  }
  if (tables.size() == 1) return own;
  absl::c_stable_sort(tables, [](const auto& a, const auto& b) { return a.first > b.first; });
  constexpr double kSameAmount = 1.1;                    // amounts of two processes within this factor are one
  std::map<std::string, std::map<double, double>> rows;  // seconds by amount
  for (const auto& [total, table] : tables) {
    for (const auto& [name, row] : CostModel::from_json(table).operators) {
      const std::map<double, double> of_slower = rows[name];
      for (const OperatorTime& time : row) {
        const auto found = of_slower.lower_bound(time.amount / kSameAmount);
        if (found == of_slower.end() || found->first > time.amount * kSameAmount)
          rows[name].emplace(time.amount, time.seconds);
      }
    }
  }
  OperatorTimes all;
  for (const auto& [name, row] : rows) {
    for (const auto& [amount, of_amount] : row) all[name].push_back({amount, of_amount});
  }
  return all;
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
  double seconds = 0;
  for (const auto& step : steps) {
    step();
    for (const Sample& sample : samples_of(step, world, repetitions)) {
      seconds += sample.seconds;
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
  return table_of_slowest(times, seconds, world);
}

}  // namespace dtensor
