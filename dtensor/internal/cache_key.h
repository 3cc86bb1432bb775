// Writes arguments into a strategy-cache key, word by word. Internal.
#pragma once

#include <ATen/core/ivalue.h>

#include "propagation/strategy_cache.h"

namespace dtensor {

// Appends the type of `value` and, unless `type_only`, its contents; lists element by element. Values of a kind that
// cannot be written (generators, custom objects) count by their type.
void append_static(CacheKey& key, const c10::IValue& value, bool type_only);

// Appends what strategies may know of a number whose value is irrelevant: whether it is finite, and of a divisor
// whether it is 0.
void append_class(CacheKey& key, const c10::IValue& value, bool divisor);

}  // namespace dtensor
