// Collectives between processes, one rank each, carried by c10d backends: Gloo on CPU, NCCL on CUDA.
//
// What every backend can do is to move bytes: exchanges go as one alltoall_base of bytes (byte_exchange.h), so uneven
// parts and all dtypes work everywhere; with NCCL an all_gather of equal parts goes by _allgather_base. What it reduces
// itself, and what is emulated, stands in comm/backend_capabilities.h.
//
// With Gloo a call returns when it is done, but with CommCall::work when it has its place in the order in which the
// calls of its group begin. With NCCL it returns when it is under way: the current stream waits for it, the host does
// not, but for barrier() and the comparisons of DTENSOR_DEBUG=detail. What goes wrong after that is thrown by the next
// call.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "processes/job/job.h"

namespace c10d {
class ProcessGroup;
}

namespace dtensor::internal {

// `backend`: "gloo" or "nccl"; `device`: of this rank's tensors. Groups are made on first use, by their members, from
// job->store(). `world_group`: a user's own process group, used for all ranks of the world; may be null.
// Error (c10::Error): another backend, or nccl in a program without it.
std::unique_ptr<Communicator> make_c10d_communicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> world_group = {});

}  // namespace dtensor::internal
