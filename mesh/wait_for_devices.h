// Waiting for GPUs, which compute what the program has enqueued while it goes on.
#pragma once

#include "mesh/world.h"

namespace dtensor::internal {

// Waits until the devices of the world's ranks in this process have done all that was enqueued on any stream. Nothing
// to wait for on CPUs.
void wait_for_devices(const World& world);

}  // namespace dtensor::internal
