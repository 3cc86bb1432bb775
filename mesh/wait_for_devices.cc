#include "mesh/wait_for_devices.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "absl/container/flat_hash_set.h"

namespace dtensor::internal {

void wait_for_devices(const World& world) {
  if (world.device_type() == c10::DeviceType::CPU) return;
  const c10::impl::VirtualGuardImpl guard(world.device_type());
  absl::flat_hash_set<c10::DeviceIndex> done;
  for (const int64_t rank : world.owned_ranks()) {
    const c10::DeviceIndex device = world.device(rank).index();
    if (done.insert(device).second) guard.synchronizeDevice(device);
  }
}

}  // namespace dtensor::internal
