// The store at which the ranks of a job meet (launch_env.h says which).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include "processes/launch/launch_env.h"

namespace c10d {
class Store;
}

namespace dtensor::internal {

// Connects to place.store; rank 0 of a "tcp://" store listens there unless the launcher does, on that address alone and
// until the process ends.
// Errors (c10::Error), within place.timeout: the address is bad or taken, there is no answer, the file or its folder
// cannot be used; the text says which rank listens where, and what to change. REQUIRES: place.store is not empty.
c10::intrusive_ptr<c10d::Store> open_store(const JobPlace& place);

}  // namespace dtensor::internal
