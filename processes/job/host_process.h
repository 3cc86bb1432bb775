// Processes of this host, as other processes of it see them.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor {

// Equal in two processes if they are on one host: its name, and what tells containers apart that share a name.
std::string host_name();

// Equal in two processes if the number of a process means the same one in both.
std::string pid_namespace();

// When process `pid` began, in ticks since the host did; "" if there is no such process. Numbers are used again, this
// tells which one it is.
std::string process_start(int64_t pid);

// "R", "S", "T" (stopped), "Z" (dead, not waited for), ...; "" if there is no such process.
std::string process_state(int64_t pid);

}  // namespace dtensor
