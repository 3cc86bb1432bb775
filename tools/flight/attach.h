// The ranks of running jobs on this host, asked what they are doing (processes/job/status_server.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "processes/job/rank_address.h"
#include "tools/flight/input.h"

namespace dtensor::tools {

// The answer of a rank (processes/job/status_text.h).
struct LiveAnswer {
  std::string waits_in;  // "call 5: all_reduce over tp, 24 B"; "": it does not wait
  std::chrono::milliseconds waited{0};
  std::vector<std::string> last;  // the last thing begun in every group
  std::string failure;            // of the job; "": it has not failed
  FlightDump dump;
};

struct LiveRank {
  internal::RankAddress address;
  int64_t pid = 0;                   // as this process sees it
  std::string state;                 // process_state(); "": there is no such process
  int64_t resident_bytes = -1;       // host memory; -1: not known
  std::optional<LiveAnswer> answer;  // nullopt: none came in time, or not one that can be read
  std::string unreadable;            // the fault of the answer; "": no answer, or no fault
};

struct LiveJob {
  std::string id;
  int64_t size = 0;
  std::vector<LiveRank> ranks;  // those on this host, by rank
};

// The jobs of this user that have a rank in process `job` or in one that `job` started, directly or not: `job` is a
// launcher or a rank. All their ranks on this host, of which none gets longer than `patience` to answer. Ranks of other
// jobs are not asked: connections to them only determine their owner.
// Error (UsageError): `job` is not the number of a process, or has no ranks; the text lists the existing jobs.
std::vector<LiveJob> attach(const std::string& job, std::chrono::milliseconds patience);

// Parses one answer. Error (UsageError): it is not an answer.
LiveAnswer parse_answer(const std::string& from, const std::string& text);

}  // namespace dtensor::tools
