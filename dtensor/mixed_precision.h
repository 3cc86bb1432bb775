// Mixed precision of a module's parameters: they, their gradients and the optimizer's states keep their dtype, as
// float32, while operators compute with values in a smaller one.
//
//   fully_shard(*block, mesh, {.mixed_precision = {.param_dtype = at::kBFloat16}});
//   parallelize_module(*model, mesh, plan, {.mixed_precision = {.param_dtype = at::kBFloat16}});
//
// An operator of the program that takes such a parameter and other tensors, and is one of those that follow styles
// (parallelize_module.h), takes all of its floating-point tensors with dims in param_dtype, except under autocast,
// which chooses the dtypes itself, and in batch norm, whose statistics stay as they are. A parallel style moves its
// input before that cast. Each use of a parameter in forward makes a cast of the rank's part, which autograd may save.
// reduce_dtype holds for the gradients that backward() reduces together, and for reduce_gradients().
//
// Source: torch.distributed.fsdp.MixedPrecisionPolicy.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

namespace dtensor {

struct MixedPrecision {
  // The dtype in which operators compute with floating-point parameters. nullopt: their own, and no input is cast.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  // The dtype in which backward() reduces gradients. nullopt: that of the parameters (in PyTorch: param_dtype).
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;

  friend bool operator==(const MixedPrecision&, const MixedPrecision&) = default;
};

}  // namespace dtensor
