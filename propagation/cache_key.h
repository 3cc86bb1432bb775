// The key of a call in the strategy cache.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>

namespace dtensor {

using CacheKey = c10::SmallVector<uint64_t, 32>;

}  // namespace dtensor
