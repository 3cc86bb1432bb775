// Which tensors of a program are addends when it runs on distributed tensors.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

struct Addends {
  double scale = 0;    // the largest of them
  bool exact = false;  // they reduce to the plain value without rounding, in whichever order
};

// By tensor; [0] before the first step, [k] after k steps. Ends where the distributed run does.
std::vector<std::map<int, Addends>> addends_of(const Program& program);

}  // namespace dtensor::fuzz
