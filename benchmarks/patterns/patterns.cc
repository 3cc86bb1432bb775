// Compares the communication of models with hand-written versions by experts (docs/patterns.md).
//
//   ./bazelw run //benchmarks/patterns
//   ./bazelw run //benchmarks/patterns -- --only Llama --tree
//   ./bazelw run //benchmarks/patterns -- --optimize            # how far the engine is from what a search finds
//   ./bazelw run //benchmarks/patterns -- --scale 1 --budgets   # lines for tests/patterns/budgets.cc
//
// Counts and bytes are those of one rank, the one that receives most, and hold on abstract worlds, too. The peak is of
// all distributed tensors of that rank, including those that stay.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "benchmarks/patterns/cases.h"
#include "dtensor/dtensor.h"
#include "dtensor/optimize_layouts.h"
#include "mesh/memory_meter.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the patterns whose names begin so");
ABSL_FLAG(bool, tree, false, "print every collective with its cause");
ABSL_FLAG(bool, budgets, false,
          "print what is communicated as lines of the tests' table, and not beside those by hand");
ABSL_FLAG(bool, optimize, false, "search for better layouts of each step, and print what that spares");
ABSL_FLAG(int64_t, trials, 1000, "of a search, at most");
ABSL_FLAG(int64_t, scale, 8, "of the models' sizes; 1: those of tests");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;

double ratio(double ours, double by_hand) {
  if (by_hand > 0) return ours / by_hand;
  return ours > 0 ? INFINITY : 0;
}

constexpr double kMostWork = 1.02;

// A number with its upper `limit`; checked after the table.
struct Figure {
  std::string what;
  double value, limit;
};

void print_budgets(const PatternCase& c) {
  const DeviceMesh mesh = mesh_of(c);
  for (const Phase& phase : c.make(mesh, absl::GetFlag(FLAGS_scale)).phases) {
    const CommBudget budget({});
    phase.run();
    std::printf("      {\"%s\", \"%s\", \"%s\", %lld, %lld},\n", c.name.c_str(), mesh.to_string().c_str(),
                phase.name.c_str(), static_cast<long long>(budget.calls()), static_cast<long long>(budget.bytes()));
  }
}

// All phases of a pattern as one step, in the world of its own that a search wants.
void search(const PatternCase& c) {
  const DeviceMesh mesh = mesh_of(c);
  const Pattern pattern = c.make(mesh, absl::GetFlag(FLAGS_scale));
  OptimizeLayoutsOptions options;
  options.max_trials = absl::GetFlag(FLAGS_trials);
  const LayoutPlan plan = optimize_layouts(
      [&] {
        for (const Phase& phase : pattern.phases) phase.run();
      },
      options);
  const auto in_us = [](double seconds) { return seconds * 1e6; };
  std::printf("| %-20s | %-28s | %9.1f | %9.1f | %5.2f | %4lld | %4lld | %3zu | %5lld |\n", c.name.c_str(),
              mesh.to_string().c_str(), in_us(plan.before.seconds), in_us(plan.after.seconds),
              plan.before.seconds / plan.after.seconds, static_cast<long long>(plan.before.collectives),
              static_cast<long long>(plan.after.collectives), plan.pins.size(), static_cast<long long>(plan.trials));
  if (absl::GetFlag(FLAGS_tree)) std::cout << plan.explain() << "\n";
  std::fflush(stdout);
}

void measure(const PatternCase& c, std::vector<Figure>& figures) {
  const DeviceMesh mesh = mesh_of(c);
  const Pattern pattern = c.make(mesh, absl::GetFlag(FLAGS_scale));
  for (const Phase& phase : pattern.phases) {
    MemoryMeter& memory = mesh.world().memory();
    memory.reset_peak();
    CommDebugMode comm;
    phase.run();
    const auto calls = static_cast<double>(comm.total()), bytes = static_cast<double>(comm.bytes());
    const std::string what = c.name + " on " + mesh.to_string() + ", " + phase.name;
    const double calls_ratio = ratio(calls, static_cast<double>(phase.by_hand.calls));
    const double bytes_ratio = ratio(bytes, phase.by_hand.bytes);
    const double work = comm.work_share(), work_ratio = ratio(work, phase.work_by_hand);
    std::printf("| %-20s | %-28s | %-14s | %4.0f | %4lld | %5.2f | %11.4f | %11.4f | %7.2f | %5.2f | %5.2f | %9.3f |\n",
                c.name.c_str(), mesh.to_string().c_str(), phase.name.c_str(), calls,
                static_cast<long long>(phase.by_hand.calls), calls_ratio, bytes * 1e-6, phase.by_hand.bytes * 1e-6,
                bytes_ratio, work, phase.work_by_hand, static_cast<double>(memory.peak_bytes()) * 1e-6);
    if (absl::GetFlag(FLAGS_tree)) std::cout << comm << "\n";
    figures.push_back({what + ": calls / by hand", calls_ratio, pattern.calls_gate});
    figures.push_back({what + ": bytes / by hand", bytes_ratio, pattern.bytes_gate});
    figures.push_back({what + ": matrix products / by hand", work_ratio, kMostWork});
  }
}

int run() {
  const std::string only = absl::GetFlag(FLAGS_only);
  const bool budgets = absl::GetFlag(FLAGS_budgets);
  std::vector<Figure> figures;
  const bool searches = absl::GetFlag(FLAGS_optimize);
  if (searches) {
    std::printf("| model | mesh | engine, us | found, us | ratio | calls | found | changed | trials |\n");
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  } else if (!budgets) {
    std::printf("| model | mesh | | calls | by hand | ratio | MB | by hand | ratio | work | by hand | peak, MB |\n");
    std::printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  }
  for (const PatternCase& c : pattern_cases()) {
    if (c.name.find(only) != 0) continue;
    try {
      budgets ? print_budgets(c) : searches ? search(c) : measure(c, figures);
    } catch (const c10::Error& error) {
      figures.push_back(
          {c.name + " on " + mesh_of(c).to_string() + ": " + error.what_without_backtrace(), INFINITY, 1});
    }
  }
  Gates gates;
  for (const Figure& f : figures) gates.at_most(f.what, f.value, f.limit);
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("patterns", "Compares communication with that of hand-written code.", argc, argv,
                                     run);
}
