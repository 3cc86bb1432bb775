// Shrinks a program that shows a finding to a small one that shows it, too.
#pragma once

#include <functional>

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

// Runs a candidate; for crashes, in a separate process.
using Runner = std::function<Outcome(const Program&)>;

struct Shrunk {
  Program program;
  Outcome outcome;
};

// Removes steps, replaces them by their results, simplifies mesh, layouts, sizes, dtypes, values and arguments, as long
// as the finding stays and the program shrinks, or until the time is over.
Shrunk shrink(const Program& program, const Outcome& outcome, double seconds, const Runner& runner = run);

}  // namespace dtensor::fuzz
