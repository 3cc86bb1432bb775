// Which tensors of a program are Partial in the distributed run.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

struct Addends {
  double scale = 0;    // the largest addend
  bool exact = false;  // they reduce to the plain value without rounding, in any order
};

// By tensor; [0] before the first step, [k] after k steps. Ends where the distributed run does.
std::vector<std::map<int, Addends>> addends_of(const Program& program);

}  // namespace dtensor::fuzz
