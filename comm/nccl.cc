#include "comm/nccl.h"

#include <c10/util/Exception.h>

namespace dtensor::internal {
namespace {

// Set before main by a static object of another library, hence a constant at first.
constinit const NcclFunctions* provided = nullptr;

}  // namespace

void set_nccl_functions(const NcclFunctions* functions) { provided = functions; }

const NcclFunctions* find_nccl_functions() { return provided; }

const NcclFunctions& nccl_functions() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      provided != nullptr,
      "World: the backend is nccl, but this program has no NCCL: link //:dtensor_nccl, built where a CUDA "
      "toolkit is, or use gloo with device cpu");
  return *provided;
}

}  // namespace dtensor::internal
