// Compares predictions of steps with what the steps take on this machine: ten small models on three meshes of four
// ranks, in this process or in four.
//
//   ./bazelw run //benchmarks:prediction
//   ./bazelw run //benchmarks:prediction -- --scale 4 --only Llama
//   ./bazelw run //benchmarks:prediction -- --device cuda:0
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/benchmarks/prediction --from_env
//
// The cost model is measured first, as //tools:calibrate does. Times are of a forward and a backward, the lower
// quartile of several; ranks of one process compute in turn, so calibrated speeds are those of a rank that waits for
// the others. The batch grows with data parallelism, so meshes are compared by the time of a replica's batch. Memory is
// what the process allocates for tensors, by the number of ranks. No gate: it prints what there is, for
// docs/choosing_a_mesh.md.
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/flags/flag.h"
#include "benchmarks/measure.h"
#include "benchmarks/patterns/cases.h"
#include "comm/comm_call.h"
#include "comm/comm_event.h"
#include "comm/scope.h"
#include "comm/work_event.h"
#include "dtensor/dtensor.h"
#include "mesh/wait_for_devices.h"
#include "plan/cost_model.h"
#include "tools/calibrate/calibration.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the models whose names begin so");
ABSL_FLAG(int64_t, scale, 4, "of the models' sizes");
ABSL_FLAG(int, steps, 9, "that are timed");
ABSL_FLAG(bool, quick, false, "calibrate in a moment");
ABSL_FLAG(std::string, device, "cpu",
          "of ranks in this process, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD");
ABSL_FLAG(bool, from_env, false, "the ranks are the processes that a launcher started");
ABSL_FLAG(bool, operators, false, "also the operators and collectives whose times are predicted worst");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;

constexpr int64_t kRanks = 4;

// Counts what tensors take in this process.
class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = base_->raw_allocate(bytes);
    const std::lock_guard lock(mutex_);
    if (data != nullptr) sizes_[data] = static_cast<int64_t>(bytes);
    live_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, live_);
    return {data, data, &CountingAllocator::free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_ = live_;
  }
  void forget() {
    const std::lock_guard lock(mutex_);
    sizes_.clear();
    live_ = peak_ = 0;
  }
  int64_t peak() const {
    const std::lock_guard lock(mutex_);
    return peak_;
  }

  // Outlives all tensors.
  static CountingAllocator& instance() {
    static auto* const allocator = new CountingAllocator;
    return *allocator;
  }

 private:
  static void free(void* data) {
    CountingAllocator& self = instance();
    {
      const std::lock_guard lock(self.mutex_);
      const auto found = self.sizes_.find(data);
      if (found != self.sizes_.end()) {  // neither null nor forgotten
        self.live_ -= found->second;
        self.sizes_.erase(found);
      }
    }
    if (data == nullptr) return;
    self.base_->raw_deallocate(data);
  }

  c10::Allocator* const base_ = c10::GetDefaultCPUAllocator();
  mutable std::mutex mutex_;
  absl::flat_hash_map<void*, int64_t> sizes_;  // guarded by mutex_
  int64_t live_ = 0, peak_ = 0;                // likewise
};

// What tensors take on one device.
class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device) : device_(device) {
    if (device.is_cpu()) c10::SetCPUAllocator(&CountingAllocator::instance(), /*priority=*/1);
  }
  // From now on: on the CPU what is allocated, on a GPU what is more than now. A backend's thread frees its last
  // buffers some time later.
  void begin() {
    if (device_.is_cpu()) return CountingAllocator::instance().forget();
    before_ = bytes().current;
  }
  void reset_peak() { device_.is_cpu() ? CountingAllocator::instance().reset_peak() : gpu().resetPeakStats(index()); }
  int64_t peak() { return device_.is_cpu() ? CountingAllocator::instance().peak() : bytes().peak - before_; }

 private:
  c10::DeviceIndex index() const { return std::max<c10::DeviceIndex>(device_.index(), 0); }
  c10::DeviceAllocator& gpu() const { return *c10::getDeviceAllocator(device_.type()); }
  c10::CachingAllocator::Stat bytes() const { return gpu().getDeviceStats(index()).requested_bytes[0]; }  // of all

  const c10::Device device_;
  int64_t before_ = 0;  // on a GPU
};

// The ten, each with the first case of its name in the patterns' table, whatever mesh that has.
std::vector<PatternCase> models() {
  std::vector<PatternCase> found;
  for (const char* name :
       {"Llama", "Decoder", "Decoder, RMSNorm", "Decoder, q k v viewed", "Decoder, GLU", "Decoder, tokens split",
        "Transformer", "MultiheadAttention", "Vision transformer", "State space"}) {
    const auto at = absl::c_find_if(pattern_cases(), [&](const PatternCase& c) { return c.name == name; });
    TORCH_CHECK(at != pattern_cases().end(), "no case of benchmarks/patterns is named ", name);
    found.push_back(*at);
  }
  return found;
}

struct Result {
  int64_t replicas = 1;
  StepPrediction predicted;
  double seconds = 0;
  double peak_bytes = 0;  // per rank
};

double timed(const std::function<void()>& step, const World& world) {
  std::vector<double> seconds;
  internal::wait_for_devices(world);
  for (int i = 0; i < absl::GetFlag(FLAGS_steps); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    internal::wait_for_devices(world);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  // Of both, this and the cost model: other programs disturb it less than the median.
  absl::c_sort(seconds);
  return seconds[seconds.size() / 4];
}

// Milliseconds by operator or collective.
using Times = std::map<std::string, double>;

// The time from one report to the next is that of the operator or collective that the second is about.
class MeasuredTimes final : public internal::CommListener {
 public:
  void on_comm(const CommEvent&, bool) override {}
  void on_call(const CommEvent& event, const internal::CommView&, bool before) override {
    if (!before) add(std::string(to_string(event.collective)) + "(" + event.mesh_dims + ")");
  }
  void on_work(const internal::WorkEvent& event) override { add(event.op); }
  const Times& times() const { return times_; }

 private:
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);  // backward runs on threads of its own
    const auto now = std::chrono::steady_clock::now();
    times_[name] += std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
  }
  std::mutex mutex_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();  // guarded by mutex_
  Times times_;                                                                    // likewise
};

// The operators and collectives whose predicted times differ most from the measured ones.
void print_operators(const std::function<void()>& step, const World& world) {
  constexpr int kSteps = 5;
  constexpr size_t kRows = 12;
  Times predicted, measured;
  for (const StepSpan& span : predict_timeline(step, world).spans)
    predicted[span.name] += (span.end - span.begin) * 1e3;
  for (int i = 0; i < kSteps; ++i) {
    MeasuredTimes times;
    const internal::ScopeGuard listening([&](internal::Scope& s) { s.listeners.push_back(&times); });
    step();
    for (const auto& [name, ms] : times.times()) measured[name] += ms / kSteps;
  }
  for (const auto& [name, ms] : measured) predicted.try_emplace(name, 0);
  std::vector<std::pair<double, std::string>> rows;
  for (const auto& [name, ms] : predicted) rows.emplace_back(-std::abs(measured[name] - ms), name);
  absl::c_sort(rows);
  rows.resize(std::min(rows.size(), kRows));
  for (const auto& row : rows) {
    std::printf("    %-44s predicted %8.3f ms, measured %8.3f ms\n", row.second.c_str(), predicted[row.second],
                measured[row.second]);
  }
}

Result measure(const World& world, const PatternCase& c, int64_t replicas, TensorMemory& memory) {
  memory.begin();
  const DeviceMesh mesh(world, {replicas, kRanks / replicas}, {"dp", "tp"});
  const Pattern pattern = c.make(mesh, absl::GetFlag(FLAGS_scale));
  const auto step = [&] {
    for (const Phase& phase : pattern.phases) phase.run();
  };
  for (int i = 0; i < 3; ++i) step();  // decides, and fills caches
  Result result;
  result.replicas = replicas;
  result.predicted = predict_step(step, world);
  result.seconds = timed(step, world);
  if (absl::GetFlag(FLAGS_operators)) print_operators(step, world);
  memory.reset_peak();
  step();
  result.peak_bytes = static_cast<double>(memory.peak()) / static_cast<double>(world.owned_ranks().size());
  return result;
}

// Places by time of a replica's batch, the fastest first: "2 1 0".
std::string order(const std::vector<Result>& results, const std::function<double(const Result&)>& seconds) {
  std::vector<size_t> places(results.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  const auto of_replica = [&](size_t i) { return seconds(results[i]) / static_cast<double>(results[i].replicas); };
  absl::c_stable_sort(places, [&](size_t a, size_t b) { return of_replica(a) < of_replica(b); });
  std::string text;
  for (const size_t i : places) text += (text.empty() ? "dp=" : ", ") + std::to_string(results[i].replicas);
  return text;
}

void print(const PatternCase& c, const std::vector<Result>& results) {
  for (const Result& r : results) {
    const double predicted = r.predicted.seconds(), peak = static_cast<double>(r.predicted.peak_bytes);
    std::printf("| %-22s | dp=%lld tp=%lld | %8.2f | %8.2f | %5.2f | %8.3f | %8.3f | %5.2f |\n", c.name.c_str(),
                static_cast<long long>(r.replicas), static_cast<long long>(kRanks / r.replicas), predicted * 1e3,
                r.seconds * 1e3, predicted / r.seconds, peak * 1e-6, r.peak_bytes * 1e-6, peak / r.peak_bytes);
  }
}

int run() {
  const c10::Device device(absl::GetFlag(FLAGS_device));
  TensorMemory memory(device);
  const World world = absl::GetFlag(FLAGS_from_env) ? World::from_env() : World::local(kRanks, device);
  if (world.size() != kRanks) throw tools::UsageError("--from_env: start four processes, as `launch -n 4` does");
  const bool is_first = world.owned_ranks().front() == 0;
  if (!is_first && std::freopen("/dev/null", "w", stdout) == nullptr) return 1;  // one rank prints for all
  tools::Calibration calibration(world, kRanks, int64_t{4} << 20, absl::GetFlag(FLAGS_quick));
  set_cost_model(world, calibration.run());
  std::printf("%s\n", calibration.table().c_str());
  std::printf("| model | mesh | predicted, ms | measured, ms | ratio | peak, MB | measured, MB | ratio |\n");
  std::printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  std::vector<std::string> orders;
  int agree = 0, first = 0;
  for (const PatternCase& c : models()) {
    if (c.name.find(absl::GetFlag(FLAGS_only)) != 0) continue;
    std::vector<Result> results;
    for (const int64_t replicas : {4, 2, 1}) results.push_back(measure(world, c, replicas, memory));
    print(c, results);
    std::fflush(stdout);
    const std::string predicted = order(results, [](const Result&r) { return r.predicted.seconds(); }),
                      measured = order(results, [](const Result&r) { return r.seconds; });
    agree += predicted == measured;
    first += predicted.substr(0, 4) == measured.substr(0, 4);
    orders.push_back(c.name + ": predicted " + predicted + "; measured " + measured);
  }
  std::printf("\nMeshes by the time of a replica's batch, fastest first:\n");
  for (const std::string& line : orders) std::printf("  %s\n", line.c_str());
  std::printf("%d of %zu orders agree, %d in the fastest.\n", agree, orders.size(), first);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("prediction", "Compares predicted with measured steps on this machine.", argc, argv, run);
}
