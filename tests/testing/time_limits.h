// Limits of time for tests, which share a machine with others: it may be several times slower, or stop for a second.
#pragma once

#include <chrono>
#include <ctime>

namespace dtensor::testing {

// For what takes milliseconds on an idle machine, and would take a job's deadline, or forever, if it waited for another
// rank. The deadline in such a test has to be longer, as 20 s are.
constexpr std::chrono::seconds kAtOnce{10};

// The time for which this thread has computed: other programs do not lengthen it as they do that of a clock.
inline double thread_cpu_seconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace dtensor::testing
