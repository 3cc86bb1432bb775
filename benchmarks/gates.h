// Figures that a benchmark asserts.
#pragma once

#include <string>
#include <vector>

namespace dtensor::benchmarks {

// The median, for figures of repeated calls. REQUIRES: there are values.
double median(std::vector<double> values);

// Prints a line for each and remembers whether any failed.
class Gates {
 public:
  void at_most(const std::string& what, double value, double limit);
  void at_least(const std::string& what, double value, double limit);
  // Prints what came of it; the exit code.
  int close() const;

 private:
  void report(bool good, const std::string& what, double value, const char* relation, double limit);
  int failed_ = 0;
};

}  // namespace dtensor::benchmarks
