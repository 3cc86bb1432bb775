// The collectives that ranks of a group can do together.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dtensor {

enum class Collective : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kScatter,
  kGather,
  kPermute,
  kBarrier,
};
inline constexpr int kNumCollectives = 9;

// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "scatter", "gather", "permute", "barrier".
std::string_view to_string(Collective c);

// One number per Collective.
using CollectiveCounts = std::array<int64_t, kNumCollectives>;

}  // namespace dtensor
