// The key of a call in the strategy cache.
#pragma once

#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string_view>

namespace dtensor {

using CacheKey = c10::SmallVector<uint64_t, 32>;

namespace internal {

// Appends the length of `text` and its characters.
void append_text(CacheKey& key, std::string_view text);

}  // namespace internal

}  // namespace dtensor
