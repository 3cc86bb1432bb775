#include "processes/c10d/nccl_backend.h"

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace dtensor {
namespace {

NcclBackendFactory nccl_backend_factory = nullptr;

}  // namespace

void set_nccl_backend_factory(NcclBackendFactory factory) { nccl_backend_factory = factory; }

void check_nccl_backend() {
  TORCH_CHECK_NOT_IMPLEMENTED(
      nccl_backend_factory != nullptr,
      "World: the backend is nccl, but this program has no NCCL: link //:dtensor_nccl, built where a CUDA "
      "toolkit is, or use gloo with device cpu");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    c10::Device device, std::chrono::milliseconds timeout) {
  check_nccl_backend();
  return nccl_backend_factory(store, rank, size, device, timeout);
}

}  // namespace dtensor
