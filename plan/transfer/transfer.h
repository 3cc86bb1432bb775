// Transfers between layouts that are not on one mesh: which rank sends which block to which.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/comm_call.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {

// Every message that ranks owned by this process send or receive when a tensor without Partials goes from one layout to
// another, by sender, receiver, input, output. A rank takes elements that it holds from itself; several ranks that hold
// the same share the sending.
// REQUIRES: no parts of `before` overlap, except copies along mesh dims that do not cut.
std::vector<Message> transfer_messages(const TensorMeta& meta, const Layout& before, const Layout& after);

// The same for all ranks, without messages from a rank to itself; nullopt if there are more than 2^18, which takes too
// long. For the planner, like the following.
std::optional<std::vector<Message>> messages_between_ranks(const TensorMeta& meta, const Layout& before,
                                                           const Layout& after);

// The traffic of a transfer, on the ranks that receive, send and hold most.
struct Traffic {
  struct Rank {
    int64_t rank = 0;
    int64_t in = 0, out = 0, kept = 0;  // bytes
  };
  std::vector<Rank> ranks;
  int64_t received = 0;
  int64_t sent = 0;
  int64_t held = 0;  // before and after together
  bool same = true;  // every rank's parts are unchanged
};
// Computed from sums over ranks without listing messages: a receiver gets missing elements evenly from all copies of
// the tensor.
Traffic traffic_of(const TensorMeta& meta, const Layout& before, const Layout& after);

// Memory of the transfer with packed messages, on the rank that needs most: its parts, sent and received messages.
// Exact, unless more than 2^18 pairs of parts overlap and there is no closed form: then assumes that every rank sends
// as much.
int64_t packed_bytes(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& traffic);

// Errors: boxes outside the tensor, with a wrong number of dims, or on ranks that do not exist; in a source, boxes that
// overlap; a mesh whose placements the tensor cannot have. `name`: of the argument.
void check_layout(const TensorMeta& meta, const Layout& layout, const char* name, bool is_source);
// Error: boxes of `from` that omit elements that `to` needs.
void check_covered(const TensorMeta& meta, const Layout& from, const Layout& to);

// routes() for a plan between two layouts that are not on one mesh.
std::vector<Route> transfer_routes(const RedistributePlan& plan);

}  // namespace dtensor::internal
