// Collectives between processes, one rank each, carried by c10d backends: Gloo on CPU, NCCL on CUDA.
//
// What every backend can do is to move bytes: exchanges go as one alltoall_base of packed bytes, so uneven parts and all
// dtypes work everywhere. What it reduces itself, and what is emulated, stands in capabilities().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mesh/communicator.h"
#include "processes/job.h"

namespace c10d {
class ProcessGroup;
}

namespace dtensor {

struct Capability {
  std::string what;  // "all_reduce sum f32"
  std::string how;   // "native", or how it is emulated
};
// Of "gloo" or "nccl": what docs/worlds.md shows.
std::vector<Capability> capabilities(const std::string& backend);

// `backend`: "gloo" or "nccl"; `device`: of this rank's tensors. Groups are made on first use, by their members, from
// job->store(). `world_group`: a user's own process group, used for all ranks of the world; may be null.
std::unique_ptr<Communicator> make_c10d_communicator(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                                                     c10::intrusive_ptr<c10d::ProcessGroup> world_group = {});

}  // namespace dtensor
