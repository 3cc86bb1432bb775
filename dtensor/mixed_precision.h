// Mixed precision of parameters that are sharded: they, their gradients and the optimizer's states keep their dtype, as
// float32, while operators compute with values in a smaller one.
//
//   fully_shard(*block, mesh, {.mixed_precision = {.param_dtype = at::kBFloat16}});
//
// Source: torch.distributed.fsdp.MixedPrecisionPolicy.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

namespace dtensor {

struct MixedPrecision {
  // Each rank casts its parts of floating-point parameters to this dtype before they are gathered. nullopt: no cast.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  // The dtype in which backward() reduces gradients. nullopt: that of the parameters (in PyTorch: param_dtype).
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
};

}  // namespace dtensor
