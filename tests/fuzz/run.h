// Runs a program both ways and compares after every step.
#pragma once

#include <string>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

enum class Kind {
  kPass,
  kInvalid,     // plain LibTorch refuses it
  kDocumented,  // the library refuses it, and says so in its documentation (refusals.h)
  kUnstable,    // differs, but so do two plain runs that round differently
  kRefused,     // the library refuses what plain LibTorch does
  kWrong,       // another value, dtype, shape; replicas that differ; a plain tensor
  kCrash,       // the process ends
};
const char* to_string(Kind kind);
inline bool is_finding(Kind kind) { return kind >= Kind::kRefused; }

struct Outcome {
  Kind kind = Kind::kPass;
  std::string op;       // the operator of the step that shows it
  int order = 0;        // 0: a step shows it; 1, 2: gradients of that order do
  size_t step = 0;      // which one; the number of steps for gradients
  int tensor = -1;      // which tensor or gradient is wrong; -1: a number, or none in particular
  std::string message;  // what is wrong
  int compared = 0;     // how many tensors were looked at
};

Outcome run(const Program& program);

// The same finding in another program: kind, operator, order of gradients, and for refusals the text without its
// numbers.
bool same_finding(const Outcome& a, const Outcome& b);
// What same_finding compares, as a key.
std::string signature(const Outcome& outcome);

}  // namespace dtensor::fuzz
