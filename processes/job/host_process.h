// Processes of this host, as other processes of it see them.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::internal {

// Equal in two processes if they are on one host: its name, and an id that distinguishes containers with the same name.
std::string host_name();

// Equal in two processes if the number of a process means the same one in both.
std::string pid_namespace();

// When process `pid` began, in ticks since the host did; "" if there is no such process. Process numbers are reused;
// this distinguishes them.
std::string process_start(int64_t pid);

// "R", "S", "T" (stopped), "Z" (dead, not waited for), ...; "" if there is no such process.
std::string process_state(int64_t pid);

// The process that started it, or has taken it over; 0 if there is no such process.
int64_t parent_process(int64_t pid);

// The fault of process `pid`, as the end of "rank 2 failed: ": it is gone, also where `start`, its process_start() of
// before, is not "" and another process has the number now; unless `only_final`, that it is stopped. "": nothing.
std::string process_fault(int64_t pid, const std::string& start, bool only_final);

}  // namespace dtensor::internal
