#include "comm/local_nccl.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"

namespace dtensor {
namespace {

LocalNcclFactory local_nccl_factory = nullptr;

}  // namespace

void set_local_nccl_factory(LocalNcclFactory factory) { local_nccl_factory = factory; }

std::unique_ptr<Communicator> make_communicator_for(std::vector<c10::Device> devices) {
  const bool several = std::any_of(devices.begin(), devices.end(), [&](c10::Device d) { return d != devices[0]; });
  if (several && devices[0].is_cuda() && local_nccl_factory != nullptr) return local_nccl_factory(std::move(devices));
  return make_local_communicator(std::move(devices));
}

}  // namespace dtensor
