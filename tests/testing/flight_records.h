// The flight recorder's records, as its dump has them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "observe/flight_recorder.h"

namespace dtensor::testing {

inline nlohmann::json flight_dump() {
  std::ostringstream os;
  dump_flight_recorder(os);
  return nlohmann::json::parse(os.str());
}

// -1: there is none.
inline int64_t last_record() {
  const nlohmann::json entries = flight_dump().at("entries");
  return entries.empty() ? -1 : entries.back().at("record_id").get<int64_t>();
}

// Those after `last`: other test cases have left theirs.
inline std::vector<nlohmann::json> records_after(int64_t last) {
  std::vector<nlohmann::json> records;
  const nlohmann::json all = flight_dump();
  for (const nlohmann::json& entry : all.at("entries")) {
    if (entry.at("record_id").get<int64_t>() > last) records.push_back(entry);
  }
  return records;
}

}  // namespace dtensor::testing
