// LibTorch's own fallback at kDTensorKey. No release up to 2.15 registers one, but one is announced, for fake tensors.
// This library's fallback then replaces it, and passes every call without distributed tensors on to it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace dtensor::internal {

using Fallback = void(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Call once per process, before other threads run operators; stays registered. Error (c10::Error): LibTorch has kernels
// of its own at kDTensorKey for single operators, which would not reach the fallback.
void register_fallback(Fallback* fallback);

// What runs at kDTensorKey for all operators but those with typed kernels (internal/typed_kernels.h), which call it
// where they do not apply.
const c10::KernelFunction& boxed_kernel();

// A kernel of one operator, with its own signature, at kDTensorKey; stays registered. Call after register_fallback().
void register_typed_kernel(const char* name, const char* overload, c10::KernelFunction kernel);

}  // namespace dtensor::internal
