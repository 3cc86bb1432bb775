#include "benchmarks/gates.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace dtensor::benchmarks {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void Gates::at_most(const std::string& what, double value, double limit) {
  report(value <= limit, what, value, "at most", limit);
}
void Gates::at_least(const std::string& what, double value, double limit) {
  report(value >= limit, what, value, "at least", limit);
}

void Gates::report(bool good, const std::string& what, double value, const char* relation, double limit) {
  std::printf("%s %s: %.4g, %s %.4g\n", good ? "[ok]  " : "[FAIL]", what.c_str(), value, relation, limit);
  std::fflush(stdout);
  failed_ += good ? 0 : 1;
}

int Gates::close() const {
  std::printf("\n%s\n", failed_ == 0 ? "All figures hold." : "Some figures do not hold: see [FAIL] above.");
  return failed_ == 0 ? 0 : 1;
}

}  // namespace dtensor::benchmarks
