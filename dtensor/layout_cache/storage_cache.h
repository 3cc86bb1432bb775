// The cache that belongs to the memory of a tensor and its views: copies in other layouts (cached_layouts.h) and other
// facts (cached_facts.h). Both are dropped when the memory is written to, evicted by the byte limit of
// remembered_layouts.h, and never given to the user: tensors keep their placements.
//
// Cache contents follow from layouts, sizes, strides and the order of operators, so they are the same on all ranks;
// reading local tensors changes nothing. Memory that the user may write to (LocalStorage::user_may_write) caches
// nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
struct RedistributePlan;  // plan/redistribute_plan.h
}  // namespace dtensor

namespace dtensor::internal {

struct GhostRegion;  // ghost_region.h

// A tensor as a range of the memory that it shares with its views.
struct MemoryRange {
  SpecPtr spec;
  int64_t offset = 0;     // of the first element, in elements
  bool is_dense = false;  // the tensor fills the range, so that views within the range can be views of it
  ConjNegBits seen;       // DTensorMeta::seen
  RankTensors locals;
};

MemoryRange memory_range_of(const at::Tensor& t);

// A copy after a redistribution.
struct CachedLayout {
  std::shared_ptr<const RedistributePlan> plan;
  RankTensors locals;                            // after `plan`
  std::shared_ptr<LocalStorage> storage;         // counts the bytes of `locals`
  std::shared_ptr<CommWork> arriving = nullptr;  // fills in `locals`; null: they are there
};

// The sums along `dim`, which keeps size 1.
struct CachedSums {
  at::Tensor sums;
  int64_t dim = 0;
};

// Per rank the `width` elements before its local tensor along `dim`, then the `width` elements after it; the dim is
// taken as a ring. Empty for a rank without elements.
struct CachedMargins {
  int64_t dim = 0, width = 0;
  RankTensors locals;
  std::shared_ptr<LocalStorage> storage;  // counts their bytes
};

using CachedGhostRegion = std::shared_ptr<const GhostRegion>;

using CachedValue = std::variant<CachedLayout, CachedSums, CachedMargins, CachedGhostRegion>;

struct CacheEntry {
  MemoryRange of;
  CachedValue value;
  uint64_t writes = 0;                                    // LocalStorage::writes when the entry was made
  uint64_t recording = 0;                                 // StepDecider::recording() then
  std::shared_ptr<RememberedBytes> counted_in = nullptr;  // counts its bytes under `id`
  uint64_t id = 0;
};

struct StorageCache {
  std::optional<MemoryRange>
      base;  // the tensor that all others in this memory are views of; nullopt: no view was taken
  std::vector<CacheEntry> entries;
};

// May operators cache what they compute from `storage`?
bool may_cache(const LocalStorage& storage);

// Adds `value`, cached for the tensor at `of` in `storage`, and evicts what exceeds the byte limit. `writes`: the
// number of writes to `storage` that the value includes. `bytes`: of the rank that needs most; an entry above the limit
// is not added. `gathered`: counted in gathered_of(), which has no limit.
void add_to_cache(const std::shared_ptr<LocalStorage>& storage, MemoryRange of, CachedValue value, uint64_t writes,
                  uint64_t recording, int64_t bytes, bool gathered = false);

// The number of writes to `storage` so far, and the id of the recording on this thread, 0 without one.
uint64_t writes_of(const LocalStorage& storage);
uint64_t current_recording();

// The first current entry with a value of type Value for which `fits(entry, value)` holds, now the most recently used;
// nullptr without one. REQUIRES: storage.cached is made, and its mutex is locked.
template <typename Value, typename Fits>
CacheEntry* find_in_cache(const LocalStorage& storage, Fits fits) {
  if (!storage.cached->contents) return nullptr;
  const uint64_t writes = writes_of(storage), recording = current_recording();
  for (CacheEntry& entry : storage.cached->contents->entries) {
    const Value* value = std::get_if<Value>(&entry.value);
    if (value == nullptr || entry.writes != writes || (recording != 0 && entry.recording != recording)) continue;
    if (!fits(std::as_const(entry), *value)) continue;
    entry.counted_in->use(entry.id);
    return &entry;
  }
  return nullptr;
}

// Around a write by `op` to the local tensors of `t`. Before: errors of an observer of its memory. After: counts the
// write, and calls the observer, which may communicate.
void check_write(const at::Tensor& t, std::string_view op);
void note_write(const at::Tensor& t, std::string_view op);
// Counts a write to `storage` and drops the entries made before it. Returns the number of writes before.
uint64_t mark_written(LocalStorage& storage);
// Drops the entries for which `is_dropped` holds.
void drop_entries(LocalStorage& storage, const std::function<bool(const CacheEntry&)>& is_dropped);
// Drops the entries of `evicted` from the caches that they are in.
void drop_entries(const std::vector<RememberedBytes::Entry>& evicted);
// Inside backward: all entries of tensors on `mesh`, and all gathered ones, are dropped when this backward() ends.
void drop_after_backward(const DeviceMesh& mesh);

}  // namespace dtensor::internal
