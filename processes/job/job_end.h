// The end of a rank's use of a job: whether the members of its groups have made as many calls as it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::internal {

class JobState;  // job_state.h

// This rank's number of calls per group.
struct GroupCalls {
  std::string group;  // as Activity::group
  std::string name;   // for people
  std::vector<int64_t> members;
  int64_t calls = 0;
};

// Posts at the store that this rank makes no more calls, and waits until all members of `groups` have posted so after
// as many calls, ten seconds at most: other ranks may be about to detect that their calls do not match this one's.
// Fails the job if members of a group have ended after different numbers of calls, or the process of one is gone.
// Errors (std::exception): those of the store.
void end_calls(JobState& state, std::vector<GroupCalls> groups);

}  // namespace dtensor::internal
