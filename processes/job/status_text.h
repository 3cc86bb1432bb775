// The answer of a rank of a running job (status_server.h): one line of JSON with the state of the job, then a dump of
// the flight recorder, then kStatusEnd.
//
//   {"rank":1,"size":4,"waits_in":"call 5: all_reduce over tp, 24 B","waited_ms":1200,"last":["call 5: ..."],
//    "failure":""}
#pragma once

#include <string>

namespace dtensor::internal {

class JobState;

// Without it, an answer was cut off.
inline constexpr char kStatusEnd[] = "\nend of answer\n";

// On any thread. Waits for other threads' locks a second at most.
std::string status_text(JobState& state);

}  // namespace dtensor::internal
