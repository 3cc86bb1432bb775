// Runs programs in separate processes, so that a crash is a finding like any other.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/tally.h"

namespace dtensor::fuzz {

struct WorkerOptions {
  uint64_t seed = 1;
  double seconds = 60;         // of the whole run
  int64_t first = 0;           // first program
  int64_t programs = -1;       // programs below this number; -1: until the time is over
  int64_t only = -1;           // only this program
  double shrink_seconds = 20;  // per finding
  int64_t most_steps = 6;
  c10::Device device = c10::kCPU;  // that programs run on
  std::vector<std::string> open;   // known findings that wait for a fix: only recorded
};

// Runs programs, starting another process after each crash; prints findings as they come. LibTorch must not have been
// used before.
void run_programs(const WorkerOptions& options, Tally& tally);

}  // namespace dtensor::fuzz
