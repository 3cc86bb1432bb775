// One record per collective: what was communicated, how much, and why.
//
// Communicators report every call as a CommEvent to the listeners of the current thread's scope (scope.h).
// CommDebugMode, budgets and traces are listeners of this one stream.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <string>
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

// How many collectives this process has completed since it started, in all worlds and on all threads. Only grows: whoever
// wants the count of a stretch subtracts. Thread-safe.
CollectiveCounts collectives_issued();

// Internal: communicators tell that one is done.
void count_collective(Collective c);

// Who asked for the communication.
struct CommCause {
  std::string op;           // "aten::mm", or the API function that was called: "redistribute", "full_tensor", ...
  std::string argument;     // the argument of `op` that was redistributed, "" where there is none
  std::string module_path;  // "layers.0.attn.wq", "" outside modules
  bool implicit = true;     // inserted by the engine, not asked for by the user
};

struct CommEvent {
  Collective collective = Collective::kBarrier;
  CommCause cause;
  bool backward = false;  // issued while autograd's engine ran
  std::string mesh_dims;  // names of the mesh dims whose groups took part: "tp", "dp,tp"
  int64_t group_size = 1;
  int64_t bytes = 0;  // received by one rank, the largest of the group
  c10::ScalarType dtype = c10::ScalarType::Float;
  double seconds = 0;  // host time of the call
};

class CommListener {
 public:
  virtual ~CommListener() = default;
  // Called on the thread that issued the collective, before it runs (seconds == 0) when `before`, and after it.
  // Throwing from the call before prevents the communication.
  virtual void on_comm(const CommEvent& event, bool before) = 0;
};

}  // namespace dtensor
