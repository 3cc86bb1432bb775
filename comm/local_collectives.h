// The collectives among ranks that are all in this process, by copies between their tensors.
//
// They may be on several devices: a copy runs on the current streams of both, and the host waits for neither.
#pragma once

#include <vector>

#include "comm/comm_call.h"

namespace dtensor::internal {

// Error (c10::Error): call.ranks lacks a member of a group that has another.
void check_whole_groups(const CommCall& call, const RankSlots& slots);
// Error: call.ranks lacks the sender or the receiver of a message.
void check_both_ends(const RankSlots& slots, absl::Span<const Message> messages);

// As Communicator's, for those groups of the call of which there are messages.
void exchange_by_copies(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                        const RankPieces& outputs);
void reduce_scatter_by_copies(const CommCall& call, absl::Span<const Message> messages, const RankPieces& inputs,
                              const RankPieces& outputs, ReduceOp op);

}  // namespace dtensor::internal
