// A program as C++ that compiles against the library and torch/torch.h.
#pragma once

#include <string>

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

// Its main() runs the steps on plain and on distributed tensors, prints the differences, and returns 1, or 0 if there
// are none.
std::string print_cpp(const Program& program, const Outcome& outcome);

}  // namespace dtensor::fuzz
