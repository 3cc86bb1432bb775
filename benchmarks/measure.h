// How benchmarks measure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dtensor::benchmarks {

// The median, for figures of repeated calls. REQUIRES: there are values.
double median(std::vector<double> values);

// Two ways of doing the same, called by turns.
struct PairedTimes {
  double ours = 0;    // microseconds of a call, the median
  double theirs = 0;  // likewise
  double ratio = 0;   // the median of ours / theirs of two turns that follow each other
};
// Short calls are repeated within a turn. The first turns do not count, and the one that goes first changes.
PairedTimes time_pairs(const std::function<void()>& ours, const std::function<void()>& theirs, int pairs = 60);

// Calls `call` in a function of a name that instructions.py gives to valgrind, and prints `what`, for which it asks.
void count_instructions(const std::string& what, const std::function<void()>& call);

// Bytes of this process in physical memory.
int64_t resident_bytes();

}  // namespace dtensor::benchmarks
