// Dumps of the flight recorders of the ranks of one job, side by side.
#pragma once

#include "tools/flight/input.h"

namespace dtensor::tools {

struct FlightReport {
  std::string text;
  bool diverged = false;
  std::vector<int64_t> odd;  // ranks in the minority, at that call
};

struct FlightOptions {
  int64_t last = 10;  // calls of each group to show
  // For ranks that still run, and were not asked at the same moment: how long the others must have been in a call that
  // a rank has not reached.
  int64_t late_after_ns = 0;
  std::string no_dump = "left no dump";  // what is said of ranks without one
};

// The last calls of every group, a line for each way in which a call was made, and the first call, by time, at which
// the ranks part. Error (UsageError): two dumps of one rank.
FlightReport compare_flights(const std::vector<FlightDump>& dumps, const FlightOptions& options);

}  // namespace dtensor::tools
