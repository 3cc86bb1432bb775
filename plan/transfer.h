// Between layouts that are not on one mesh: who sends which block to whom.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/comm_call.h"
#include "plan/redistribute_plan.h"

namespace dtensor {

// Every message that ranks owned by this process send or receive when a tensor without Partials goes from one layout to
// another, by sender, receiver, input, output. A rank that holds what it needs takes it from itself; of several that
// hold the same, every one sends to some.
// REQUIRES: no rank's parts of `before` overlap but copies along mesh dims that do not cut.
std::vector<Message> transfer_messages(const TensorMeta& meta, const Layout& before, const Layout& after);

// The same of all ranks, without what a rank takes from itself; none if they are more than 2^18, which takes too long.
// Internal to the planner, as the rest.
std::optional<std::vector<Message>> messages_between_ranks(const TensorMeta& meta, const Layout& before,
                                                           const Layout& after);

// What a transfer moves, at the ranks that receive, send and hold most.
struct Traffic {
  struct Rank {
    int64_t rank = 0;
    int64_t in = 0, out = 0, kept = 0;  // bytes
  };
  std::vector<Rank> ranks;
  int64_t received = 0;
  int64_t sent = 0;
  int64_t held = 0;  // before and after together
  bool same = true;  // every rank has the same parts as before
};
// Sums over ranks without listing messages: what a receiver lacks comes evenly from those that hold a copy of the
// tensor.
Traffic traffic_of(const TensorMeta& meta, const Layout& before, const Layout& after);

// What the transfer needs where messages are packed, on the rank that needs most: its parts, what it sends and what it
// receives. Exact, unless more than 2^18 pairs of parts meet and the sums are not plain: then as if every rank sent as
// much.
int64_t packed_bytes(const TensorMeta& meta, const Layout& before, const Layout& after, const Traffic& traffic);

// Errors: boxes outside the tensor, of another number of dims, or on ranks that are not there; of a source, boxes that
// overlap; a mesh that a tensor cannot be on as a whole. `name`: of the argument.
void check_layout(const TensorMeta& meta, const Layout& layout, const char* name, bool is_source);
// Error: boxes of `from` that leave out what `to` needs.
void check_covered(const TensorMeta& meta, const Layout& from, const Layout& to);

// routes() of a plan between two layouts that are not on one mesh.
std::vector<Route> transfer_routes(const RedistributePlan& plan);

}  // namespace dtensor
