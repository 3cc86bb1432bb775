// One rank's dump of the flight recorder (observe/flight_recorder.h), as a file has it. PyTorch's JSON dumps are read,
// too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/flags.h"

namespace dtensor::tools {

struct FlightCall {
  size_t group = 0;      // of FlightDump::groups
  int64_t sequence = 0;  // from 1
  std::string what;      // "all_reduce over tp for aten::mm, 384 B": equal where the calls fit together
  std::string module;    // "in layers.0", "after layers.0" or "": more where the rank counted its calls
  std::string state;     // "scheduled", "started", "completed", "failed", "not awaited": begun, and nothing waits
  int64_t created_ns = 0, completed_ns = 0;  // since 1970; 0: not known, or not yet
};

struct FlightDump {
  struct Group {
    std::string name, description;  // "0-3", "tp"
    std::vector<int64_t> ranks;
    int64_t last = 0;         // the last call's number
    bool in_process = false;  // its ranks are all in the process that wrote the dump
  };
  std::string file;
  int64_t rank = 0;
  int64_t time_ns = 0;  // when it was made, since 1970; 0: not known
  std::vector<Group> groups;
  std::vector<FlightCall> calls;
};

// Error (UsageError): one line with the file and what is wrong with it.
FlightDump read_flight_dump(const std::string& path);
FlightDump parse_flight_dump(const std::string& file, const std::string& text);

}  // namespace dtensor::tools
