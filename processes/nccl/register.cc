// Registers, before main, that this program has NCCL.
#include "comm/nccl.h"
#include "processes/nccl/functions.h"

namespace dtensor::internal {
namespace {

constexpr NcclFunctions kFunctions = {make_local_nccl_communicator, make_nccl_backend, prepare_nccl_watch};

[[maybe_unused]] const bool registered = (set_nccl_functions(&kFunctions), true);

}  // namespace
}  // namespace dtensor::internal
