#include "propagation/cache_key.h"

#include <algorithm>
#include <cstring>

namespace dtensor::internal {

void append_text(CacheKey& key, std::string_view text) {
  key.push_back(text.size());
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    key.push_back(word);
  }
}

}  // namespace dtensor::internal
