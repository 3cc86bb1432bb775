// How benchmarks measure.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dtensor::benchmarks {

// The median, for figures of repeated calls. REQUIRES: there are values.
double median(std::vector<double> values);

// Seconds of a call: the median of as many as fit a tenth of a second, of at least 9. Two first calls do not count.
double time_calls(const std::function<void()>& call);

// Two ways of doing the same, called by turns.
struct PairedTimes {
  double ours = 0;    // microseconds of a call, the median
  double theirs = 0;  // likewise
  double ratio = 0;   // the median of ours / theirs of two turns that follow each other
};
// Short calls are repeated within a turn. The first turns do not count, and the one that goes first changes.
PairedTimes time_pairs(const std::function<void()>& ours, const std::function<void()>& theirs, int pairs = 60);

// CPU seconds of this thread that each of `calls` took, in `turns` turns in which all are called one after the other.
// Other programs on the machine disturb them less than the time that passes. Two first calls of each do not count.
std::vector<std::vector<double>> time_turns(const std::vector<std::function<void()>>& calls, int64_t turns);

// The same on a GPU, where `device` is one: the time between two events of its current stream, of several calls that
// are enqueued one after the other, so that what the host does in between does not count.
std::vector<std::vector<double>> time_turns(const std::vector<std::function<void()>>& calls, int64_t turns,
                                            c10::Device device);

// Medians of times in microseconds, and of the quotients of two calls' times in the same turns.
double median_microseconds(const std::vector<double>& seconds);
double median_ratio(const std::vector<double>& seconds, const std::vector<double>& other_seconds);

// Calls `call` in a function of a name that instructions.py gives to valgrind, and prints `what`, for which it asks.
void count_instructions(const std::string& what, const std::function<void()>& call);

// From now on malloc() uses released memory again, as docs/performance.md recommends for a program: otherwise glibc
// maps and clears large blocks each time, which would hide what is measured.
void keep_released_memory();

// From now on memory that a tensor on the CPU releases goes to the next tensor of the same size, and is never given
// back, so that a call that allocates its results can be compared with one whose buffers are there before. Call it
// before the first tensor that counts is made.
void keep_memory_of_tensors();

// Bytes of this process in physical memory.
int64_t resident_bytes();

}  // namespace dtensor::benchmarks
