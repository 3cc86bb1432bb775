#include "processes/job/status_text.h"

#include <nlohmann/json.hpp>

#include "observe/flight_ring.h"
#include "processes/job/job_state.h"

namespace dtensor::internal {

std::string status_text(JobState& state) {
  using Json = nlohmann::ordered_json;
  const RankStatus now = state.status();
  Json last = Json::array();
  for (const auto& [group, what] : now.last) last.push_back(what);
  const Json json = {{"rank", state.rank()},
                     {"size", state.size()},
                     {"waits_in", now.active ? now.what : ""},
                     {"waited_ms", now.waited.count()},
                     {"last", std::move(last)},
                     {"failure", state.failure_text()}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" + flight_dump_text(state.rank()) + kStatusEnd;
}

}  // namespace dtensor::internal
