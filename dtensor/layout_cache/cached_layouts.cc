#include "dtensor/layout_cache/cached_layouts.h"

#include <mutex>
#include <utility>

#include "dtensor/layout_cache/derived_view.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "plan/cost_policy.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

bool is_same(const MemoryRange& range, const at::Tensor& t, const Spec& spec) {
  return range.spec.get() == &spec && range.offset == t.storage_offset();
}

// Does the tensor at `of` in the layout `moved_to` provide `t` in the layout `to`?
bool provides(const MemoryRange& of, const Placements& moved_to, const at::Tensor& t, const Spec& spec,
              const Placements& to) {
  if (is_same(of, t, spec)) return moved_to == to;
  return is_within(of, spec, t.storage_offset()) && can_derive_view(of, moved_to, t, to);
}

// The local tensors of `t` in the layout `to`, from `moved`: those of the tensor at `of` after `plan`.
RankTensors provide(const MemoryRange& of, const RedistributePlan& plan, RankTensors& moved, const at::Tensor& t,
                    const Placements& to) {
  const DTensorMeta& meta = meta_without_sync(t);
  RankTensors parts = is_same(of, t, *meta.spec) ? moved : derive_view(of, plan.to.placements(), moved, t, to);
  LocalGuard guard;
  for (at::Tensor& part : parts) part = with_conj_neg(std::move(part), meta.seen ^ of.seen);
  return parts;
}

// The cached copy that provides `t` in the layout `to`. REQUIRES: storage.cache_mutex is locked.
CacheEntry* find_provider(LocalStorage& storage, const at::Tensor& t, const Spec& spec, const Placements& to) {
  return find_in_cache<CachedLayout>(storage, [&](const CacheEntry& entry, const CachedLayout& copy) {
    return provides(entry.of, copy.plan->to.placements(), t, spec, to);
  });
}

RankTensors provide(CacheEntry& entry, const at::Tensor& t, const Placements& to) {
  auto& copy = std::get<CachedLayout>(entry.value);
  if (copy.arriving) {
    LocalGuard guard;
    copy.arriving->wait();
    copy.arriving = nullptr;
  }
  return provide(entry.of, *copy.plan, copy.locals, t, to);
}

int64_t moved_bytes(const Spec& from, const RedistributePlan& plan) {
  return from.with_placements(plan.to.placements())->max_local_bytes();
}

bool is_worth_caching(const Spec& spec, const RedistributePlan& plan) {
  return !plan.is_local() && fits_in_cache(spec.mesh().world(), moved_bytes(spec, plan));
}

// The base of `t`; nullptr: there is none, `t` is the base, or conjugates or negates it. REQUIRES: storage.cache_mutex
// is locked.
const MemoryRange* find_base(const LocalStorage& storage, const at::Tensor& t, const DTensorMeta& meta) {
  if (!storage.cache || !storage.cache->base) return nullptr;
  const MemoryRange& base = *storage.cache->base;
  const bool is_view = !is_same(base, t, *meta.spec) && is_within(base, *meta.spec, t.storage_offset());
  return is_view && base.seen == meta.seen ? &base : nullptr;
}

}  // namespace

void set_base_of_views(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  LocalStorage& storage = *cache_memory(t);
  if (storage.has_base.load(std::memory_order_relaxed) || meta.spec->is_replicated()) return;
  std::lock_guard lock(storage.cache_mutex);
  if (!storage.cache) storage.cache = std::make_shared<StorageCache>();
  if (!storage.cache->base) storage.cache->base = memory_range_of(t);
  storage.has_base.store(true, std::memory_order_relaxed);
}

at::Tensor base_of_view(const at::Tensor& t) {
  LocalStorage& storage = *cache_memory(t);
  std::lock_guard lock(storage.cache_mutex);
  const MemoryRange* base = find_base(storage, t, meta_without_sync(t));
  return base == nullptr ? at::Tensor() : make_view(base->spec, base->locals, cached_with(t), base->offset);
}

std::optional<RankTensors> find_cached_layout(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_for_read(t);
  LocalStorage& storage = *cache_memory(t);
  if (!may_cache(storage)) return std::nullopt;
  const Placements& to = plan.to.placements();
  std::lock_guard lock(storage.cache_mutex);
  CacheEntry* entry = find_provider(storage, t, *meta.spec, to);
  return entry == nullptr ? std::nullopt : std::optional(provide(*entry, t, to));
}

at::Tensor find_copy(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = meta_for_read(t);
  LocalStorage& storage = *cache_memory(t);
  std::lock_guard lock(storage.cache_mutex);
  CacheEntry* entry = find_provider(storage, t, *meta.spec, to);
  if (entry == nullptr) return {};
  return make_view(meta.spec->with_placements(to), provide(*entry, t, to), t, t.storage_offset(),
                   std::get<CachedLayout>(entry->value).storage);
}

bool has_copy(const at::Tensor& t, const Placements& to) {
  LocalStorage& storage = *cache_memory(t);
  std::lock_guard lock(storage.cache_mutex);
  return find_provider(storage, t, *spec_of(t), to) != nullptr;
}

at::Tensor find_reduced_copy(const at::Tensor& t) {
  if (!spec_of(t)->has_partial() || !may_cache(*cache_memory(t))) return {};
  return find_copy(t, without_partials(spec_of(t)->placements()));
}

bool can_derive(const at::Tensor& t, const Placements& to, const at::Tensor& base, const Placements& base_to) {
  return provides(memory_range_of(base), base_to, t, *spec_of(t), to);
}

void keep_gathered(const at::Tensor& t, const at::Tensor& gathered) {
  const DTensorMeta &meta = meta_without_sync(t), &copy = meta_without_sync(gathered);
  auto plan = cached_plan(meta.spec, copy.spec->placements(), current_dispatch_scope().hints.limits);
  copy.storage->is_parameter = meta.storage->is_parameter.load();  // operators treat views of either alike
  CachedLayout layout{std::move(plan), copy.locals, copy.storage, copy.arriving};
  const std::shared_ptr<LocalStorage>& storage = cache_memory(t);
  add_to_cache(storage, memory_range_of(t), std::move(layout), writes_of(*storage), current_recording(),
               copy.spec->max_local_bytes(), /*gathered=*/true);
}

PendingMove choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan) {
  const DTensorMeta& meta = meta_for_read(t);
  LocalStorage& storage = *cache_memory(t);
  PendingMove pending{memory_range_of(t), std::move(plan), writes_of(storage), current_recording()};
  std::lock_guard lock(storage.cache_mutex);
  const MemoryRange* base = may_cache(storage) ? find_base(storage, t, meta) : nullptr;
  if (base == nullptr) return pending;
  const auto base_to = base_layout_for(*base, *meta.spec, t.storage_offset(), pending.plan->to.placements());
  if (!base_to) return pending;
  auto base_plan = cached_plan_within(base->spec, *base_to, current_dispatch_scope().hints.limits);
  if (!base_plan || base_plan->is_local()) return pending;
  const double factor = is_worth_caching(*base->spec, *base_plan) ? kBaseForViews : 1;
  if (base_plan->seconds > factor * pending.plan->seconds) return pending;
  pending.of = *base;
  pending.plan = std::move(base_plan);
  return pending;
}

bool will_provide(const PendingMove& pending, const at::Tensor& of, const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (cache_memory(of) != cache_memory(t) || !may_cache(*cache_memory(t))) return false;
  if (!is_worth_caching(*pending.of.spec, *pending.plan)) return false;
  return provides(pending.of, pending.plan->to.placements(), t, *meta.spec, plan.to.placements());
}

bool will_be_cached(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_without_sync(t);
  return may_cache(*cache_memory(t)) && is_worth_caching(*meta.spec, plan);
}

RankTensors finish_move(const at::Tensor& t, const Placements& to, PendingMove pending, RankTensors moved) {
  const DTensorMeta& meta = meta_without_sync(t);
  RankTensors result = provide(pending.of, *pending.plan, moved, t, to);
  const std::shared_ptr<LocalStorage>& storage = cache_memory(t);
  if (!may_cache(*storage) || !is_worth_caching(*pending.of.spec, *pending.plan)) return result;
  const int64_t bytes = moved_bytes(*pending.of.spec, *pending.plan);
  auto counts = std::make_shared<LocalStorage>(meta.spec->mesh().world(), bytes);
  add_to_cache(storage, std::move(pending.of),
               CachedLayout{std::move(pending.plan), std::move(moved), std::move(counts)}, pending.writes,
               pending.recording, bytes);
  return result;
}

}  // namespace dtensor::internal
