#include "dtensor/layout_cache/storage_cache.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/step_decider.h"

namespace dtensor::internal {
namespace {

// Removes the entries for which `is_stale` holds. The caller destroys them after it has unlocked the mutex, since they
// may own tensors of this memory. REQUIRES: cached.mutex is locked.
template <typename IsStale>
std::vector<CacheEntry> take_stale(CachedState& cached, IsStale is_stale) {
  std::vector<CacheEntry> stale;
  if (!cached.contents) return stale;
  auto& entries = cached.contents->entries;
  const auto first =
      std::stable_partition(entries.begin(), entries.end(), [&](const CacheEntry& e) { return !is_stale(e); });
  stale.assign(std::make_move_iterator(first), std::make_move_iterator(entries.end()));
  entries.erase(first, entries.end());
  cached.has_entries.store(!entries.empty(), std::memory_order_relaxed);
  return stale;
}

void stop_counting(const std::vector<CacheEntry>& entries) {
  for (const CacheEntry& entry : entries) entry.counted_in->remove(entry.id);
}

}  // namespace

MemoryRange memory_range_of(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  return {meta.spec, t.storage_offset(), t.is_non_overlapping_and_dense(), meta.seen, meta.locals};
}

bool may_cache(const LocalStorage& storage) { return !storage.user_may_write && !c10::InferenceMode::is_enabled(); }

uint64_t writes_of(const LocalStorage& storage) { return storage.writes.load(std::memory_order_relaxed); }

uint64_t current_recording() {
  const StepDecider* decider = current_dispatch_scope().step_decider;
  return decider == nullptr ? 0 : decider->recording();
}

void add_to_cache(const std::shared_ptr<LocalStorage>& storage, MemoryRange of, CachedValue value, uint64_t writes,
                  uint64_t recording, int64_t bytes, bool gathered) {
  std::vector<RememberedBytes::Entry> evicted;
  const DeviceMesh& mesh = of.spec->mesh();
  const auto counted_in = gathered ? gathered_of(mesh) : remembered_of(mesh);
  const int64_t limit =
      gathered ? std::numeric_limits<int64_t>::max() : remembered_limit(mesh.world()).load(std::memory_order_relaxed);
  const uint64_t id = counted_in->add(bytes, limit, storage, evicted);
  drop_entries(evicted);
  if (id == 0) return;
  std::vector<CacheEntry> stale;
  {
    CachedState& cached = storage->cached.make();
    std::lock_guard lock(cached.mutex);
    if (!cached.contents) cached.contents = std::make_shared<StorageCache>();
    stale = take_stale(cached, [&](const CacheEntry& e) {
      return e.writes != writes || (e.recording != 0 && e.recording != recording);
    });
    cached.contents->entries.push_back({std::move(of), std::move(value), writes, recording, counted_in, id});
    cached.has_entries.store(true, std::memory_order_relaxed);
  }
  stop_counting(stale);
}

void check_write(const at::Tensor& t, std::string_view op) {
  if (const auto& observer = meta_without_sync(t).storage->observer) observer->check_write(t, op);
}

void note_write(const at::Tensor& t, std::string_view op) {
  LocalStorage& storage = *meta_without_sync(t).storage;
  mark_written(storage);
  if (storage.observer) storage.observer->after_write(t, op);
}

[[gnu::hot]] uint64_t mark_written(LocalStorage& storage) {
  const uint64_t before = storage.writes.fetch_add(1, std::memory_order_relaxed);
  if (!storage.cached->has_entries.load(std::memory_order_relaxed)) return before;
  drop_entries(storage, [&](const CacheEntry& e) { return e.writes <= before; });
  return before;
}

void drop_entries(LocalStorage& storage, const std::function<bool(const CacheEntry&)>& is_dropped) {
  CachedState* cached = storage.cached.if_made();
  if (cached == nullptr) return;
  std::vector<CacheEntry> dropped;
  {
    std::lock_guard lock(cached->mutex);
    dropped = take_stale(*cached, is_dropped);
  }
  stop_counting(dropped);
}

void drop_entries(const std::vector<RememberedBytes::Entry>& evicted) {
  for (const RememberedBytes::Entry& entry : evicted) {
    const auto storage = entry.of.lock();
    CachedState* cached = storage ? storage->cached.if_made() : nullptr;
    if (cached == nullptr) continue;
    std::vector<CacheEntry> stale;
    std::lock_guard lock(cached->mutex);
    stale = take_stale(*cached, [&](const CacheEntry& e) { return e.id == entry.id; });
  }
}

void drop_after_backward(const DeviceMesh& mesh) {
  const auto remembered = remembered_of(mesh), gathered = gathered_of(mesh);
  if (!remembered->begins_backward(torch::autograd::get_current_graph_task_id())) return;
  auto& engine = torch::autograd::Engine::get_default_engine();
  // Queued twice, to run after the callbacks that backward itself has queued: those reduce gradients and use the cache.
  engine.queue_callback([&engine, remembered, gathered] {
    engine.queue_callback([remembered, gathered] {
      drop_entries(remembered->evict(0));
      drop_entries(gathered->evict(0));
    });
  });
}

}  // namespace dtensor::internal
