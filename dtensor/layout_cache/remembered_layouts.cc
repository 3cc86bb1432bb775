#include "dtensor/remembered_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor {
using namespace internal;

void limit_remembered_bytes(const World& world, int64_t bytes) {
  TORCH_CHECK_VALUE(bytes >= 0, "[limit_remembered_bytes] ", bytes, " bytes: give a limit per rank, or 0 for nothing");
  remembered_limit(world) = bytes;
  for (const auto& remembered : all_remembered(world)) drop_entries(remembered->evict(bytes));
}

int64_t remembered_bytes(const World& world) {
  int64_t most = 0;
  for (const auto& remembered : all_remembered(world)) most = std::max(most, remembered->bytes());
  return most;
}

void forget_remembered(const World& world) {
  for (const auto& remembered : all_remembered(world)) drop_entries(remembered->evict(0));
}

}  // namespace dtensor
