// Processes of this host, as other processes of it see them.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor {

// Equal in two processes if they are on one host: its name, and what tells containers apart that share a name.
std::string host_name();

// "R", "S", "T" (stopped), "Z" (dead, not waited for), ...; "" if there is no such process.
std::string process_state(int64_t pid);

}  // namespace dtensor
