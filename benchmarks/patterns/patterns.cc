// What models communicate, beside what experts write by hand for them (docs/performance.md).
//
//   ./bazelw run //benchmarks/patterns
//   ./bazelw run //benchmarks/patterns -- --only Llama --tree
//
// Counts and bytes are those of one rank, the one that receives most, and hold on abstract worlds, too.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "benchmarks/patterns/pattern.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the patterns whose names begin so");
ABSL_FLAG(bool, tree, false, "print every collective with its cause");
ABSL_FLAG(int64_t, scale, 8, "of the models' sizes; 1: those of tests");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;

void measure(const Pattern& pattern, Gates& gates) {
  for (const Phase& phase : pattern.phases) {
    CommDebugMode comm;
    phase.run();
    const auto calls = comm.total();
    const auto bytes = static_cast<double>(comm.bytes());
    const std::string what = pattern.name + " on " + pattern.mesh.to_string() + ", " + phase.name;
    std::printf("%-48s %5lld calls, by hand %4lld %10.3f MB, by hand %10.3f\n", what.c_str(),
                static_cast<long long>(calls), static_cast<long long>(phase.by_hand.calls), bytes * 1e-6,
                phase.by_hand.bytes * 1e-6);
    if (absl::GetFlag(FLAGS_tree)) std::cout << comm << "\n";
    gates.at_most(what + ": calls / by hand", static_cast<double>(calls) / static_cast<double>(phase.by_hand.calls),
                  pattern.calls_gate);
    gates.at_most(what + ": bytes / by hand", bytes / phase.by_hand.bytes, pattern.bytes_gate);
  }
}

int run() {
  const int64_t scale = absl::GetFlag(FLAGS_scale);
  const std::string only = absl::GetFlag(FLAGS_only);
  Gates gates;
  struct Case {
    const char* name;
    Pattern (*make)(const DeviceMesh& mesh, int64_t scale);
    std::vector<int64_t> shape;
    std::vector<std::string> names;
  };
  const std::vector<Case> cases = {
      {"Llama", llama_pattern, {2, 4}, {"dp", "tp"}},
      {"Llama", llama_pattern, {256, 4}, {"dp", "tp"}},
      {"Llama generation", llama_generation_pattern, {4}, {"tp"}},
  };
  for (const Case& c : cases) {
    if (std::string(c.name).find(only) != 0) continue;
    int64_t ranks = 1;
    for (const int64_t n : c.shape) ranks *= n;
    measure(c.make(DeviceMesh(World::abstract(ranks), c.shape, c.names), scale), gates);
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("patterns", "Compares communication with that of hand-written code.", argc, argv,
                                     run);
}
