// Registers the kernels at kDTensorKey when the library is loaded.
#include "dtensor/dispatch/core_fallback.h"
#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/internal/typed_kernels.h"

namespace dtensor::internal {
namespace {

const bool kernels_registered = [] {
  register_fallback(&dispatch);  // first: it requires that no operator has a kernel there
  register_typed_kernels();
  register_typed_lists();
  register_typed_optimizers();
  return true;
}();

}  // namespace
}  // namespace dtensor::internal
