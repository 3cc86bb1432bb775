// Runs operators on stand-ins for distributed tensors, to get the metadata of the results. Internal to shape inference.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "propagation/op_rule.h"

namespace dtensor {

// Whether the operator draws random numbers.
bool is_random(const c10::OperatorHandle& op);

// Active while stand-ins are made and run: below autograd and below distributed tensors, and hidden from Python's
// dispatch modes (a FLOP counter must not count them).
struct StandInGuard {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard unseen{
      c10::DispatchKeySet({c10::DispatchKey::Fake, c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

// The call on `device`, with `stand_in(i)` for input i.
torch::jit::Stack run_on(const OpCall& call, c10::Device device, const std::function<at::Tensor(int input)>& stand_in);
OutputMetas read_metas(const torch::jit::Stack& results);

// A plain tensor of the spec's dims and dtype, of `size` along every dim.
at::Tensor one_element(const Spec& spec, int64_t size = 1);

// On meta tensors. nullopt: the operator has no kernel for them. Errors of the kernel itself are thrown.
std::optional<OutputMetas> run_meta(const OpCall& call);

}  // namespace dtensor
