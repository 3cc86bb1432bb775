// Exchanges between the processes of a group, and what is made of them.
#pragma once

#include <functional>

#include "absl/types/span.h"
#include "comm/reduce_by_exchange.h"
#include "processes/c10d/link_call.h"

namespace dtensor::internal {

// One exchange by alltoall_base or _allgather_base (byte_exchange.h). `then` runs when the outputs have arrived, before
// the results are read. With call.is_async() this returns before that, and has copied the inputs, which the program may
// then change. With call.fingerprint the ranks first compare it and the sizes of their parts (first_messages.h); small
// parts are sent with that comparison, large ones after it, by alltoall_base. `may_all_gather`: as of ByteExchange.
void run_exchange(
    const LinkCall& call, absl::Span<const Message> messages, const RankPieces& inputs, const RankPieces& outputs,
    bool may_all_gather, std::function<void()> then = [] {});

// An all_reduce by one exchange or two. The second begins when the first has come and is reduced.
void run_all_reduce(const LinkCall& call, AllReduceSteps plan);

}  // namespace dtensor::internal
