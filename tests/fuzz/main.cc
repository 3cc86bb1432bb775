// Random programs on distributed tensors, compared with the same on plain ones.
//
//   ./bazelw run //tests/fuzz -- --seed 7 --minutes 60
//   ./bazelw run //tests/fuzz -- --seed 7 --replay 1234
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "tests/fuzz/tally.h"
#include "tests/fuzz/worker.h"
#include "tests/testing/long_tests.h"
#include "tools/flags.h"

ABSL_FLAG(uint64_t, seed, 1, "where all chance comes from: equal seeds make equal programs");
ABSL_FLAG(double, minutes, 1, "how long to go on");
ABSL_FLAG(double, seconds, 0, "the same in seconds; 0: --minutes counts");
ABSL_FLAG(int64_t, first, 0, "begin with this program of the seed: for a crash that takes the programs before it");
ABSL_FLAG(int64_t, programs, -1,
          "stop before the program of this number; -1: when the time is over; fuzz_test has 3000");
ABSL_FLAG(int64_t, replay, -1, "run this program of the seed alone");
ABSL_FLAG(int64_t, steps, 6, "the most steps that a program has");
ABSL_FLAG(std::string, device, "cpu",
          "what programs run on, as \"cuda:0\"; the program must have libtorch_cuda loaded, as by LD_PRELOAD");
ABSL_FLAG(double, shrink_seconds, 20, "how long to make a program that shows a finding smaller");
ABSL_FLAG(std::string, open, "",
          "a file of findings that wait to be mended, a line each as they are printed; they are no failure");
ABSL_FLAG(bool, coverage, false, "print how often every operator ran");

namespace dtensor::fuzz {
namespace {

// Without comments and empty lines.
std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  if (path.empty()) return lines;
  std::ifstream file(path);
  if (!file) throw tools::UsageError("--open: cannot read " + path);
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  }
  return lines;
}

int fuzz() {
  WorkerOptions options;
  options.seed = absl::GetFlag(FLAGS_seed);
  const double seconds = absl::GetFlag(FLAGS_seconds);
  options.seconds = seconds > 0 ? seconds : 60 * absl::GetFlag(FLAGS_minutes);
  options.first = absl::GetFlag(FLAGS_first);
  options.programs = absl::GetFlag(FLAGS_programs);
  const bool is_test = std::getenv("TEST_TARGET") != nullptr;  // the same programs on a slow machine
  if (is_test && options.programs < 0) options.programs = testing::long_tests() ? 20000 : 3000;
  options.only = absl::GetFlag(FLAGS_replay);
  options.most_steps = absl::GetFlag(FLAGS_steps);
  options.device = c10::Device(absl::GetFlag(FLAGS_device));
  options.shrink_seconds = absl::GetFlag(FLAGS_shrink_seconds);
  options.open = lines_of(absl::GetFlag(FLAGS_open));
  if (options.most_steps < 1) throw tools::UsageError("--steps must be 1 at least");
  Tally& tally = *Tally::shared();
  run_programs(options, tally);
  std::fputs(summary(tally, options.open, absl::GetFlag(FLAGS_coverage)).c_str(), stdout);
  const auto findings = tally.findings();
  const bool clean = std::all_of(findings.begin(), findings.end(), [&](const auto& f) {
    return is_open(f, options.open) || f.rfind(kPlainCrash, 0) == 0;  // which is not a fault of this library
  });
  if (is_test) std::printf("[dtensor] %d passed, %d failed, 0 skipped\n", clean, !clean);
  return clean ? 0 : 1;
}

}  // namespace
}  // namespace dtensor::fuzz

int main(int argc, char** argv) {
  return dtensor::tools::run_program("fuzz",
                                     "runs random programs on distributed tensors against the same on plain ones", argc,
                                     argv, dtensor::fuzz::fuzz);
}
