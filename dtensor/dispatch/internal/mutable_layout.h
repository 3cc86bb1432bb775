// Whether an operator that writes to a tensor may change its layout with the write.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "propagation/call_context.h"

namespace dtensor {

// The layouts that an operator may give to `t`, its input k, which it writes to; nullopt: only the present one. Only
// results of operators and their aliases may change, and only if their parts were never exposed. The same on all ranks,
// since all ranks alias and expose parts alike.
std::optional<MutableLayout> mutable_layout(const at::Tensor& t, int k);

}  // namespace dtensor
