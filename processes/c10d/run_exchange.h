// Exchanges between the processes of a group, and what is made of them.
#pragma once

#include <functional>

#include "absl/types/span.h"
#include "comm/reduce_by_exchange.h"
#include "processes/c10d/link_call.h"

namespace dtensor::internal {

// One alltoall_base of bytes; `then` is what is to be done with what has come, before the results are read. Does not
// wait where call.is_async(): then the program may write to the inputs at once, and they are packed before. Where
// call.fingerprint is set, the ranks compare it and their numbers of bytes before (first_messages.h); small parts are
// in these messages, large ones in a second alltoall_base. `gathers`: as of PackedExchange. REQUIRES: !gathers with a
// fingerprint.
void run_exchange(
    const LinkCall& call, absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs,
    std::function<void()> then = [] {}, bool gathers = false);

// An all_reduce by one exchange or two. The second begins when the first has come and is reduced.
void run_all_reduce(const LinkCall& call, AllReduceSteps plan);

}  // namespace dtensor::internal
