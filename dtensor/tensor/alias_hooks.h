// What representation.cc tells those who share memory of tensors: alias_group.h, which builds on it, knows what to do.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor {

struct LocalStorage;  // representation.h

// Somebody is about to share the memory of `t`.
void begin_sharing(const at::Tensor& t);
// `t` is new, and its memory is another one's.
void join_sharers(const at::Tensor& t);
// Somebody depends on the layout that this memory has.
void keep_layout_of_sharers(LocalStorage& storage);

}  // namespace dtensor
