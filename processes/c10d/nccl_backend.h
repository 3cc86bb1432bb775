// Where NCCL comes in: a program that links //:dtensor_nccl has it, others do without libtorch_cuda. Internal.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtensor {

// Rank `rank` of a new group of `size` processes that meet at `store`, for tensors on `device`.
using NcclBackendFactory = c10::intrusive_ptr<c10d::Backend> (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                                 int size, c10::Device device,
                                                                 std::chrono::milliseconds timeout);

// Static initialisation of //:dtensor_nccl sets it.
void set_nccl_backend_factory(NcclBackendFactory factory);

// Error (c10::Error): the program does not link //:dtensor_nccl, or was built without CUDA.
void check_nccl_backend();
// The group is connected when this returns: all its ranks must come, or it waits. Error: as above, and NCCL's.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout);

}  // namespace dtensor
