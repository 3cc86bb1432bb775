// Random programs: calls of the catalog's operators that plain LibTorch accepts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tests/fuzz/catalog.h"
#include "tests/fuzz/program.h"

namespace dtensor::fuzz {

struct GenerateOptions {
  int64_t most_steps = 6;
  // Only operators that satisfy this; unset: all.
  std::function<bool(const Operator&)> only = {};
  // Called with each operator before plain LibTorch tries the arguments.
  std::function<void(const Operator&)> trying = {};
};

// Program number `index` of a seed: the same on every machine.
Program generate(uint64_t seed, uint64_t index, const GenerateOptions& options = {});

}  // namespace dtensor::fuzz
