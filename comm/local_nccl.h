// Where NCCL comes in for World::local with several GPUs: a program that links //:dtensor_nccl has it, in others their
// tensors are copied. Internal.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

namespace dtensor {

class Communicator;

// `devices`: of each rank, CUDA devices, two of which differ.
using LocalNcclFactory = std::unique_ptr<Communicator> (*)(std::vector<c10::Device> devices);

// Static initialisation of //:dtensor_nccl sets it.
void set_local_nccl_factory(LocalNcclFactory factory);

// The communicator of World::local.
std::unique_ptr<Communicator> make_communicator_for(std::vector<c10::Device> devices);

}  // namespace dtensor
