// Runs a program on plain and distributed tensors and compares after every step.
#pragma once

#include <string>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

enum class Kind {
  kPass,
  kInvalid,     // plain LibTorch rejects it
  kDocumented,  // the library rejects it, as documented (refusals.h)
  kUnstable,    // differs, but so do two plain runs with different rounding
  kRefused,     // the library rejects a call that plain LibTorch accepts
  kWrong,       // another value, dtype, shape; replicas that differ; a plain tensor
  kCrash,       // the process crashed
};
const char* to_string(Kind kind);
inline bool is_finding(Kind kind) { return kind >= Kind::kRefused; }

struct Outcome {
  Kind kind = Kind::kPass;
  std::string op;       // the operator of the failing step
  int order = 0;        // 0: a step fails; 1, 2: gradients of that order do
  size_t step = 0;      // which one; the number of steps for gradients
  int tensor = -1;      // the wrong tensor or gradient; -1: a number, or none in particular
  std::string message;  // description of the fault
  int compared = 0;     // number of compared tensors
};

Outcome run(const Program& program);

// The same finding in another program: kind, operator, order of gradients, and for refusals the text without its
// numbers.
bool same_finding(const Outcome& a, const Outcome& b);
// The values that same_finding compares, as a key.
std::string signature(const Outcome& outcome);

}  // namespace dtensor::fuzz
