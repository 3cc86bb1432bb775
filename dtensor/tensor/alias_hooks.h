// Events that representation.cc reports for tensors that share memory. Implemented by alias_group.h, which builds on
// representation.h.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

struct LocalStorage;  // representation.h

// Called before a tensor begins to share the memory of `t`.
void begin_aliasing(const at::Tensor& t);
// Called when `t` is new and shares the memory of another tensor.
void join_alias_group(const at::Tensor& t);
// Called when the layout of this memory must no longer change.
void keep_alias_layouts(LocalStorage& storage);

}  // namespace dtensor
