// The functions of this folder for comm/nccl.h; comments on arguments are there.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtensor::internal {

std::unique_ptr<Communicator> make_local_nccl_communicator(std::vector<c10::Device> devices);

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout);

void prepare_nccl_watch(c10::Device device);

}  // namespace dtensor::internal
