// Dumps of the flight recorders of the ranks of one job, side by side.
#pragma once

#include "tools/flight/input.h"

namespace dtensor::tools {

struct FlightReport {
  std::string text;
  bool diverged = false;
};

// The `last` last calls of every group, a line for each way in which a call was made, and the first call, by time, at
// which the ranks part. Error (UsageError): two dumps of one rank.
FlightReport compare_flights(const std::vector<FlightDump>& dumps, int64_t last);

}  // namespace dtensor::tools
