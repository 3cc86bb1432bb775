// Where NCCL comes in: a program that links //:dtensor_nccl has it, others do without libtorch_cuda.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace dtensor::internal {

class Communicator;

// The functions provided by //:dtensor_nccl.
struct NcclFunctions {
  // The communicator of World::local on several GPUs. `devices`: of each rank, CUDA devices, two of which differ.
  std::unique_ptr<Communicator> (*make_local_communicator)(std::vector<c10::Device> devices);
  // Rank `rank` of a new group of `size` processes that meet at `store`, for tensors on `device`. The group is
  // connected when this returns: all its ranks must come, or it waits. Errors: NCCL's.
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout);
  // Prepares the calling thread, which does nothing else, to query events on `device`: it uses no other device, and
  // does not break graphs that other threads capture.
  void (*prepare_watch)(c10::Device device);
};

// Static initialisation of //:dtensor_nccl calls this. `functions` must live as long as the program.
void set_nccl_functions(const NcclFunctions* functions);

// Null in a program without NCCL.
const NcclFunctions* find_nccl_functions();
// Error (c10::Error): the program does not link //:dtensor_nccl, or was built without CUDA.
const NcclFunctions& nccl_functions();

}  // namespace dtensor::internal
