// Which models are looked at on which meshes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/patterns/pattern.h"

namespace dtensor::benchmarks {

struct PatternCase {
  std::string name;
  std::function<Pattern(const DeviceMesh& mesh, int64_t scale)> make;
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  bool data = false;  // what it does depends on numbers, so its world must have some
};

const std::vector<PatternCase>& pattern_cases();

// On an abstract world where that is possible.
DeviceMesh mesh_of(const PatternCase& c);

}  // namespace dtensor::benchmarks
