// The state of a run, in memory that survives the process that runs the programs.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

struct Tally {
  static constexpr int kKinds = 7, kOperators = 4096, kRefusals = 64, kText = 1 << 20;

  uint64_t seed = 0, index = 0;  // the current program
  int64_t programs = 0, steps = 0, compared = 0;
  int64_t kinds[kKinds] = {};
  int64_t operators[kOperators] = {};  // calls that agreed, by index in the catalog; redistributions last
  int64_t refusals[kRefusals] = {};    // by place in refusals()
  char op[256] = {};                   // that a program should have
  char text[kText] = {};               // signatures of findings, one per line

  // In memory shared with the processes that are forked later. Never freed.
  static Tally* shared();

  void count(const Program& program, const Outcome& outcome);
  // Whether a finding of that signature is recorded already; records it if not.
  bool known(const std::string& signature);
  std::vector<std::string> findings() const;
};

// Prefix of findings that are crashes of LibTorch on plain tensors.
inline constexpr char kPlainCrash[] = "crash of plain LibTorch: ";

// Whether a finding is one of `open`.
bool is_open(const std::string& finding, const std::vector<std::string>& open);

// "12 s: 3456 programs, 12345 steps, 9 documented refusals, 0 findings"
std::string progress(const Tally& tally, double seconds);
// The findings (those of `open` marked), the refusals by reason, and with `coverage` a table of the operators and how
// often each one ran.
std::string summary(const Tally& tally, const std::vector<std::string>& open, bool coverage);

}  // namespace dtensor::fuzz
