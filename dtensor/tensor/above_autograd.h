// Kernels above autograd, at kAboveAutogradKey (dispatch_key.h), for many of ATen's operators at once.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace dtensor::internal {

// Registers kernels for the life of the process. `kernel_of`: the kernel of one of ATen's operators; nullopt: it gets
// none. `what`: what they do, for the dispatcher's texts. Call it when the library is loaded.
void register_above_autograd(std::optional<c10::KernelFunction> (*kernel_of)(const c10::OperatorHandle& op),
                             const char* what);

}  // namespace dtensor::internal
