// An all_reduce by two exchanges for which its caller does not wait. Internal to the communicator.
#pragma once

#include "comm/reduce_by_exchange.h"
#include "processes/c10d/link_call.h"

namespace dtensor {

// Begins the first exchange, or leaves it to the thread that its turn comes on. The second takes its place in the
// link's order behind the first at once, and begins when this rank has reduced its part, on the thread that has
// received it: neither it nor the calls behind it wait until somebody reads the result. Sets *call.call.work. REQUIRES:
// call.is_async(), two steps.
void run_all_reduce_async(const LinkCall& call, AllReduceSteps plan);

}  // namespace dtensor
