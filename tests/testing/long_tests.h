// --config=long: tests that have a short and a long form run the long one (docs/testing.md).
#pragma once

#include <cstdlib>

namespace dtensor::testing {

inline bool long_tests() { return std::getenv("DTENSOR_LONG_TESTS") != nullptr; }

}  // namespace dtensor::testing
