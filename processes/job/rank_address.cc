#include "processes/job/rank_address.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtensor::internal {
namespace {

constexpr char kPrefix[] = "dtensor-job";

}  // namespace

std::string socket_name(const RankAddress& address) {
  return absl::StrCat(kPrefix, "/", address.job, "/", address.rank, "/", address.size, "/", address.pid, "/",
                      address.start);
}

std::optional<RankAddress> parse_socket_name(std::string_view name) {
  const std::vector<std::string> parts = absl::StrSplit(absl::string_view(name.data(), name.size()), '/');
  RankAddress address;
  if (parts.size() != 6 || parts[0] != kPrefix || parts[1].empty()) return std::nullopt;
  address.job = parts[1];
  int64_t* const numbers[] = {&address.rank, &address.size, &address.pid};
  for (size_t i = 0; i < 3; ++i) {
    if (!absl::SimpleAtoi(parts[i + 2], numbers[i]) || *numbers[i] < 0) return std::nullopt;
  }
  if (address.rank >= address.size) return std::nullopt;
  address.start = parts[5];
  return address;
}

}  // namespace dtensor::internal
