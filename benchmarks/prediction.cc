// Compares predictions of steps with what the steps take on this machine: ten small models on three meshes of four
// ranks, in this process or in four.
//
//   ./bazelw run //benchmarks:prediction
//   ./bazelw run //benchmarks:prediction -- --calibrated
//   ./bazelw run //benchmarks:prediction -- --scale 4 --only Llama
//   ./bazelw run //benchmarks:prediction -- --device cuda:0
//   ./bazelw run //tools:launch -- -n 4 -- bazel-bin/benchmarks/prediction --from_env
//
// The cost model is measured first, as //tools:calibrate does, and then the operators of each model, in steps on the
// mesh of data parallelism alone and of three sizes; the other two meshes are predicted from these, too. With
// --calibrated the operators are those that //tools:calibrate measures, of no model.
//
// Times are of a forward and a backward, the lower quartile of several; ranks of one process compute in turn, so
// measured speeds are those of a rank that waits for the others. The speed of a machine changes: what a model's
// predictions need and its steps are measured in turn, several times, and of these rounds the one with the median ratio
// is printed. The batch grows with data parallelism, so meshes are compared by the time of a replica's batch. Memory is
// what the process allocates for tensors, by the number of ranks. No gate: it prints what there is, for
// docs/choosing_a_mesh.md.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "benchmarks/measure.h"
#include "benchmarks/patterns/cases.h"
#include "benchmarks/tensor_memory.h"
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
ABSL_FLAG(int, rounds, 3, "in which each model is measured");
ABSL_FLAG(bool, calibrated, false, "predict from calibrate's times of operators instead of those of the model's own");
ABSL_FLAG(bool, quick, false, "calibrate in a moment");
ABSL_FLAG(std::string, device, "cpu",
          "of ranks in this process, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD");
ABSL_FLAG(bool, from_env, false, "the ranks are the processes that a launcher started");
ABSL_FLAG(bool, operators, false, "also the operators and collectives whose times are predicted worst");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;

constexpr int64_t kRanks = 4;

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
  double ratio() const { return predicted.seconds() / seconds; }
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

std::function<void()> make_step(const World& world, const PatternCase& c, int64_t replicas, int64_t scale) {
  const DeviceMesh mesh(world, {replicas, kRanks / replicas}, {"dp", "tp"});
  return [pattern = c.make(mesh, scale)] {
    for (const Phase& phase : pattern.phases) phase.run();
  };
}

// Of a model's steps without tensor parallelism, as large as those that are predicted, and smaller, since tensor
// parallelism splits operators.
void measure_own_operators(const World& world, const PatternCase& c) {
  std::vector<std::function<void()>> steps;
  for (int64_t scale = absl::GetFlag(FLAGS_scale); scale > 0 && steps.size() < 3; scale /= 2)
    steps.push_back(make_step(world, c, kRanks, scale));
  CostModel model = *cost_model(world);
  model.operators = measure_operators(steps, world, absl::GetFlag(FLAGS_steps));
  set_cost_model(world, model);
}

Result measure(const World& world, const PatternCase& c, int64_t replicas, TensorMemory& memory) {
  memory.begin();
  const std::function<void()> step = make_step(world, c, replicas, absl::GetFlag(FLAGS_scale));
  for (int i = 0; i < 3; ++i) step();  // decides, and fills caches
  Result result;
  result.replicas = replicas;
  result.predicted = predict_step(step, world);
  result.seconds = timed(step, world);
  std::vector<int64_t> peaks;  // differ where a backend's thread frees buffers
  for (int i = 0; i < absl::GetFlag(FLAGS_steps); ++i) {
    memory.reset_peak();
    step();
    peaks.push_back(memory.peak());
  }
  absl::c_sort(peaks);
  result.peak_bytes = static_cast<double>(peaks[peaks.size() / 2]) / static_cast<double>(world.owned_ranks().size());
  if (absl::GetFlag(FLAGS_operators)) print_operators(step, world);
  return result;
}

// On each mesh, of the round with the median ratio.
std::vector<Result> measure_rounds(const World& world, const PatternCase& c, TensorMemory& memory) {
  std::map<int64_t, std::vector<Result>, std::greater<>> rounds;  // by replicas
  for (int round = 0; round < absl::GetFlag(FLAGS_rounds); ++round) {
    if (!absl::GetFlag(FLAGS_calibrated)) measure_own_operators(world, c);
    for (const int64_t replicas : {4, 2, 1}) rounds[replicas].push_back(measure(world, c, replicas, memory));
  }
  std::vector<Result> results;
  for (auto& [replicas, of_mesh] : rounds) {
    absl::c_sort(of_mesh, [](const Result& a, const Result& b) { return a.ratio() < b.ratio(); });
    results.push_back(of_mesh[of_mesh.size() / 2]);
  }
  return results;
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
                r.seconds * 1e3, r.ratio(), peak * 1e-6, r.peak_bytes * 1e-6, peak / r.peak_bytes);
  }
}

int run() {
  const c10::Device device(absl::GetFlag(FLAGS_device));
  TensorMemory memory(device);
  const World world = absl::GetFlag(FLAGS_from_env) ? World::from_env() : World::local(kRanks, device);
  if (absl::GetFlag(FLAGS_rounds) < 1 || absl::GetFlag(FLAGS_steps) < 1 || absl::GetFlag(FLAGS_scale) < 1)
    throw tools::UsageError("--rounds, --steps, --scale: give at least 1");
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
  std::vector<double> ratios, peaks;
  for (const PatternCase& c : models()) {
    if (c.name.find(absl::GetFlag(FLAGS_only)) != 0) continue;
    const std::vector<Result> results = measure_rounds(world, c, memory);
    print(c, results);
    std::fflush(stdout);
    for (const Result& r : results) {
      ratios.push_back(r.ratio());
      peaks.push_back(static_cast<double>(r.predicted.peak_bytes) / r.peak_bytes);
    }
    const std::string predicted = order(results, [](const Result&r) { return r.predicted.seconds(); }),
                      measured = order(results, [](const Result&r) { return r.seconds; });
    agree += predicted == measured;
    first += predicted.substr(0, 4) == measured.substr(0, 4);
    orders.push_back(c.name + ": predicted " + predicted + "; measured " + measured);
  }
  std::printf("\nMeshes by the time of a replica's batch, fastest first:\n");
  for (const std::string& line : orders) std::printf("  %s\n", line.c_str());
  std::printf("%d of %zu orders agree, %d in the fastest.\n", agree, orders.size(), first);
  const auto within = [](const std::vector<double>& values, double part) {
    return static_cast<long long>(absl::c_count_if(values, [&](double v) { return std::abs(v - 1) <= part; }));
  };
  std::printf("Times within 20 %%: %lld of %zu. Peaks of memory within 5 %%: %lld of %zu.\n", within(ratios, 0.2),
              ratios.size(), within(peaks, 0.05), peaks.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tools::run_program("prediction", "Compares predicted with measured steps on this machine.", argc, argv, run);
}
