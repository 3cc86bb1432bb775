// Runs an operator on small or empty tensors in place of distributed ones, to get the metadata of its results. For
// shape inference, and for rules whose OpRule::metas needs such a run.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "propagation/op_call.h"

namespace dtensor::internal {

// Whether LibTorch's Python half, which registers hundreds of meta kernels for operators of ATen, is loaded.
bool has_meta_kernels_of_python();

// Whether ATen has a meta kernel of its own for the operator. Those that only Python registers count as none, so that
// shapes are inferred alike in Python and C++, but for elementwise and in-place operators whose kernel Python replaced.
bool has_meta_kernel(const c10::OperatorHandle& op);

// Whether the operator draws random numbers: it is tagged nondeterministic_seeded, or takes a generator.
bool is_random(const c10::OperatorHandle& op);

// Active while stand-ins are made and run: below autograd and below distributed tensors, and hidden from Python's
// dispatch modes (a FLOP counter must not count them).
struct StandInGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard unseen{
      c10::DispatchKeySet({c10::DispatchKey::Fake, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

TensorMeta read_meta(const at::Tensor& tensor);
// A tensor of the spec's global sizes, strides and dtype, without data.
at::Tensor meta_tensor(const Spec& spec);
// A tensor of the spec's dtype and number of dims on the CPU, of `size` along every dim, filled with ones.
at::Tensor tensor_of_ones(const Spec& spec, int64_t size);

// The results of the call on `device`, with `stand_in(i)` for input i. Errors of the kernel itself are thrown.
OutputMetas trial_run(const OpCall& call, c10::Device device, const std::function<at::Tensor(int input)>& stand_in);
// The same on meta tensors. nullopt: the operator has no kernel for them, or it reads values.
std::optional<OutputMetas> run_meta(const OpCall& call);

}  // namespace dtensor::internal
