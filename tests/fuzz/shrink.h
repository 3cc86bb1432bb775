// From a program that shows a finding to a small one that shows it, too.
#pragma once

#include <functional>

#include "tests/fuzz/program.h"
#include "tests/fuzz/run.h"

namespace dtensor::fuzz {

// How a candidate is tried; for crashes, in a process of its own.
using Runner = std::function<Outcome(const Program&)>;

struct Shrunk {
  Program program;
  Outcome outcome;
};

// Takes away steps, puts their results in their places, simplifies mesh, layouts, sizes, dtypes, values and arguments,
// as long as the finding stays and anything of that helps, or until the time is over.
Shrunk shrink(const Program& program, const Outcome& outcome, double seconds, const Runner& runner = run);

}  // namespace dtensor::fuzz
