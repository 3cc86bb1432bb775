// What a benchmark prints of its figures: lines for people, and with --json FILE the rows of the table of
// //benchmarks:all, one JSON object per line of FILE.
#pragma once

#include <cmath>
#include <fstream>
#include <string>

#include "benchmarks/measure.h"

namespace dtensor::benchmarks {

// A call of this library next to another way of doing the same. Not a number: no such figure.
struct Comparison {
  std::string workload;   // "add of 10 x 10, S(0) on mesh(8)"
  std::string peer = "";  // the other way: "plain LibTorch", "Gloo"
  std::string unit = "";  // of the three below: "us"
  double theirs = NAN;
  double ours = NAN;
  double limit = NAN;  // the least that this machine allows
};

// In microseconds.
Comparison compared(std::string workload, std::string peer, const PairedTimes& times);

// Prints a line for each figure and remembers whether any missed its gate.
class Gates {
 public:
  // Error (UsageError): the file of --json cannot be written.
  Gates();
  // One number.
  void at_most(const std::string& workload, double value, double limit);
  void at_least(const std::string& workload, double value, double limit);
  // A ratio: ours / theirs for at_most, and theirs / ours, how many times as fast ours is, for at_least.
  void at_most(const Comparison& c, double ratio, double gate);
  void at_least(const Comparison& c, double ratio, double gate);
  // Figures that have no gate: ours / theirs, or one number.
  void note(const Comparison& c, double ratio);
  // What cannot run on this machine.
  void skip(const std::string& workload, const std::string& why);
  // Prints a summary; the exit code of the program: 0, or 3 if a gate was missed (1 and 2 are those of run_program()).
  int close() const;

 private:
  void report(const Comparison& c, double ratio, const char* relation, double gate);
  std::ofstream rows_;
  int failed_ = 0;
};

}  // namespace dtensor::benchmarks
