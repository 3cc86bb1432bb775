#include "checkpoint/sharded/wait_for_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dtensor::internal {

void wait_for_device(const at::Tensor& t) {
  if (!t.is_cpu()) c10::impl::VirtualGuardImpl(t.device().type()).synchronizeDevice(t.device().index());
}

}  // namespace dtensor::internal
