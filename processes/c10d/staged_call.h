// A collective on CPU that takes several calls of the backend, of which each needs what the one before has brought.
#pragma once

#include <functional>
#include <vector>

#include "processes/c10d/link_call.h"

namespace dtensor::internal {

// Runs `stages` one after the other, then `done`. A stage that has nothing to send returns null.
// All take their places in the link's order at once: no call of another thread comes between them.
// With call.is_async() it begins the first, or leaves it to the thread that its turn comes on, and sets
// *call.call.work, which waits for all and calls `done`. The others begin on the thread that has received what they
// need: neither they nor later calls wait until the result is read.
void run_stages(const LinkCall& call, std::vector<StartWork> stages, std::function<void()> done);

}  // namespace dtensor::internal
