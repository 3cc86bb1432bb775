// The address at which a rank reports its activity: the name of a Unix socket of its host. The name is abstract, so it
// leaves no file behind, and it identifies the rank even if its process is stopped. It ends with the process and those
// that it forked and that have not called exec: `start` shows whether the rank itself still exists.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtensor::internal {

struct RankAddress {
  std::string job;  // equal on all ranks of a job, and on no others: letters and digits
  int64_t rank = 0, size = 0;
  int64_t pid = 0;    // as the rank itself sees it
  std::string start;  // process_start() of it: numbers are used again
};

// Without the zero byte that abstract names begin with.
std::string socket_name(const RankAddress& address);
// nullopt: it is the name of something else.
std::optional<RankAddress> parse_socket_name(std::string_view name);

}  // namespace dtensor::internal
