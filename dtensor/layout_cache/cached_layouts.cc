#include "dtensor/layout_cache/cached_layouts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/view_window.h"
#include "placement/with_dim.h"
#include "plan/cost_policy.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// ------------------------------------------------------------ views derived from their base

// How every rank gets its part of the view from the base in its new layout.
enum class Derivation {
  kNone,          // it can't
  kFromLocal,     // the base was only reduced: the same view of each local tensor
  kFromFull,      // the base is replicated: the view of the full tensor
  kSameSharding,  // the dims that are sharded before and after are whole in the view: the view of each local tensor
};

bool have_same_partials(const Placements& a, const Placements& b) {
  for (size_t m = 0; m < a.size(); ++m) {
    if (a[m].is_partial() != b[m].is_partial()) return false;
    if (a[m].is_partial() && a[m].reduce_op() != b[m].reduce_op()) return false;
  }
  return true;
}

// One past the last element, counted from the beginning of the memory.
int64_t end_of(const Spec& spec, int64_t offset) {
  int64_t last = offset;
  for (int64_t d = 0; d < spec.ndim(); ++d) last += (spec.sizes()[d] - 1) * spec.strides()[d];
  return last + 1;
}

bool are_replicated(const Placements& placements) {
  return std::all_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_replicate(); });
}

// The dims of the view as dims of its base; nullopt if reshaping joined or split dims.
std::optional<DimMap> map_to_base(const MemoryRange& base, const Spec& view, int64_t offset) {
  return map_dims(window_of(view, offset), window_of(*base.spec, base.offset));
}

// A layout of the view as one of its base; nullopt if a sharded dim is not whole in both.
std::optional<Placements> layout_of_base(const Placements& placements, const Spec& view, const Spec& base,
                                         const DimMap& map) {
  Placements result = placements;
  for (Placement& p : result) {
    if (p.is_mask_partial()) return std::nullopt;
    if (!p.is_sharded()) continue;
    const int d = map.base_dim[p.dim()];
    if (d < 0 || view.sizes()[p.dim()] != base.sizes()[d]) return std::nullopt;
    p = with_dim(p, d);
  }
  return result;
}

// kFromLocal: `view` is the part of the view within `local`, the local tensor of the base before it moved. Keeps in
// `moved` a copy with the strides that views need, if it has others.
at::Tensor view_from_local(at::Tensor& moved, const at::Tensor& local, const at::Tensor& view) {
  if (view.numel() == 0) return at::empty(view.sizes(), moved.options());
  ensure_strides(moved, local.strides());
  return moved.as_strided(view.sizes(), view.strides(),
                          moved.storage_offset() + view.storage_offset() - local.storage_offset());
}

at::Tensor view_from_full(at::Tensor& full, const MemoryRange& base, const Spec& view, int64_t offset) {
  ensure_strides(full, base.spec->strides());
  return full.as_strided(view.sizes(), view.strides(), full.storage_offset() + offset - base.offset);
}

at::Tensor view_of_same_sharding(const at::Tensor& moved, const Spec& base, const Spec& view, const DimMap& map) {
  Shape sizes(view.sizes().begin(), view.sizes().end()), strides(sizes.size(), 0);
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int base_dim = map.base_dim[d];
    if (base_dim < 0) continue;
    if (sizes[d] == base.sizes()[base_dim]) sizes[d] = moved.size(base_dim);
    strides[d] = map.step[d] * moved.stride(base_dim);
  }
  if (moved.numel() == 0) return at::empty(sizes, moved.options());
  int64_t offset = moved.storage_offset();
  for (int64_t d = 0; d < moved.dim(); ++d) offset += map.start[d] * moved.stride(d);
  return moved.as_strided(sizes, strides, offset);
}

// Is `to` the layout `from`, reduced and nothing else?
bool only_reduces(const Placements& from, const Placements& to) {
  for (size_t m = 0; m < from.size(); ++m) {
    if (from[m].is_partial() ? !to[m].is_replicate() : from[m] != to[m]) return false;
  }
  return true;
}

// Is every element of the view one of `base`, of the same dtype and mesh? False if `base` has gaps.
bool is_within(const MemoryRange& base, const Spec& view, int64_t offset) {
  return base.is_dense && view.meta().numel() > 0 && base.spec->mesh() == view.mesh() &&
         base.spec->dtype() == view.dtype() && base.offset <= offset &&
         end_of(view, offset) <= end_of(*base.spec, base.offset);
}

// Of the view of `spec` that begins `offset` elements into the memory, in the layout `view_to`, from the base at `base`
// in the layout `to`. REQUIRES: is_within(base, spec, offset).
Derivation derivation(const MemoryRange& base, const Placements& to, const Spec& view, int64_t offset,
                      const Placements& view_to) {
  const Placements& from = base.spec->placements();
  if (only_reduces(from, to) && only_reduces(view.placements(), view_to) && have_same_partials(from, view.placements()))
    return Derivation::kFromLocal;
  // The other two count elements in memory, where views as real numbers of complex ones have another size.
  if (c10::isComplexType(view.dtype())) return Derivation::kNone;
  if (are_replicated(to) && are_replicated(view_to)) return Derivation::kFromFull;
  const auto map = map_to_base(base, view, offset);
  if (!map || layout_of_base(view.placements(), view, *base.spec, *map) != from) return Derivation::kNone;
  return layout_of_base(view_to, view, *base.spec, *map) == to ? Derivation::kSameSharding : Derivation::kNone;
}

// The layout of `base` from which the view can be derived in the layout `view_to`; nullopt without one.
std::optional<Placements> base_layout_for(const MemoryRange& base, const Spec& view, int64_t offset,
                                          const Placements& view_to) {
  Placements wanted(view_to.size(), Replicate());
  if (only_reduces(view.placements(), view_to)) {
    wanted = without_partials(base.spec->placements());
  } else if (!are_replicated(view_to)) {
    const auto map = map_to_base(base, view, offset);
    const auto of_base = map ? layout_of_base(view_to, view, *base.spec, *map) : std::nullopt;
    if (!of_base) return std::nullopt;
    wanted = *of_base;
  }
  return derivation(base, wanted, view, offset, view_to) == Derivation::kNone ? std::nullopt : std::optional(wanted);
}

// The local tensors of `t`, a view of the tensor at `base`, in the layout `view_to`, derived from `moved`: the local
// tensors of the base in the layout `to`. Replaces elements of `moved` whose strides do not fit. Below autograd.
// REQUIRES: derivation() is not kNone.
RankTensors derive_view(const MemoryRange& base, const Placements& to, RankTensors& moved, const at::Tensor& t,
                        const Placements& view_to) {
  const DTensorMeta& meta = meta_without_sync(t);
  const Spec& view = *meta.spec;
  const int64_t offset = t.storage_offset();
  const Derivation how = derivation(base, to, view, offset, view_to);
  const auto map = how == Derivation::kSameSharding ? map_to_base(base, view, offset) : std::nullopt;
  LocalGuard guard;
  RankTensors result;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    result.push_back(how == Derivation::kFromFull    ? view_from_full(moved[i], base, view, offset)
                     : how == Derivation::kFromLocal ? view_from_local(moved[i], base.locals[i], meta.locals[i])
                                                     : view_of_same_sharding(moved[i], *base.spec, view, *map));
  }
  return result;
}

// ------------------------------------------------------------ cached copies

bool is_same(const MemoryRange& range, const at::Tensor& t, const Spec& spec) {
  return range.spec.get() == &spec && range.offset == t.storage_offset();
}

// Does the tensor at `of` in the layout `moved_to` provide `t` in the layout `to`?
bool provides(const MemoryRange& of, const Placements& moved_to, const at::Tensor& t, const Spec& spec,
              const Placements& to) {
  if (is_same(of, t, spec)) return moved_to == to;
  return is_within(of, spec, t.storage_offset()) &&
         derivation(of, moved_to, spec, t.storage_offset(), to) != Derivation::kNone;
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

// The cached copy that provides `t` in the layout `to`. REQUIRES: storage.cached is made, and its mutex is locked.
CacheEntry* find_provider(const LocalStorage& storage, const at::Tensor& t, const Spec& spec, const Placements& to) {
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

// The base of `t`; nullptr: there is none, `t` is the base, or conjugates or negates it. REQUIRES: cached.mutex is
// locked.
const MemoryRange* find_base(const CachedState& cached, const at::Tensor& t, const DTensorMeta& meta) {
  if (!cached.contents || !cached.contents->base) return nullptr;
  const MemoryRange& base = *cached.contents->base;
  const bool is_view = !is_same(base, t, *meta.spec) && is_within(base, *meta.spec, t.storage_offset());
  return is_view && base.seen == meta.seen ? &base : nullptr;
}

}  // namespace

[[gnu::hot]] void set_base_of_views(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  LocalStorage& storage = *meta.storage;
  if (storage.cached->has_base.load(std::memory_order_relaxed) || meta.spec->is_replicated()) return;
  CachedState& cached = storage.cached.make();
  std::lock_guard lock(cached.mutex);
  if (!cached.contents) cached.contents = std::make_shared<StorageCache>();
  if (!cached.contents->base) cached.contents->base = memory_range_of(t);
  cached.has_base.store(true, std::memory_order_relaxed);
}

at::Tensor base_of_view(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr) return {};
  std::lock_guard lock(cached->mutex);
  const MemoryRange* base = find_base(*cached, t, meta);
  return base == nullptr ? at::Tensor() : make_view(base->spec, base->locals, t, base->offset);
}

std::optional<RankTensors> find_cached_layout(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_for_read(t);
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr || !may_cache(*meta.storage)) return std::nullopt;
  const Placements& to = plan.to.placements();
  std::lock_guard lock(cached->mutex);
  CacheEntry* entry = find_provider(*meta.storage, t, *meta.spec, to);
  return entry == nullptr ? std::nullopt : std::optional(provide(*entry, t, to));
}

at::Tensor find_copy(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = meta_for_read(t);
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr) return {};
  std::lock_guard lock(cached->mutex);
  CacheEntry* entry = find_provider(*meta.storage, t, *meta.spec, to);
  if (entry == nullptr) return {};
  return make_view(meta.spec->with_placements(to), provide(*entry, t, to), t, t.storage_offset(),
                   std::get<CachedLayout>(entry->value).storage);
}

bool has_copy(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = meta_without_sync(t);
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr) return false;
  std::lock_guard lock(cached->mutex);
  return find_provider(*meta.storage, t, *meta.spec, to) != nullptr;
}

at::Tensor find_reduced_copy(const at::Tensor& t) {
  const DTensorMeta& unread = meta_without_sync(t);
  if (!unread.spec->has_partial() || !may_cache(*unread.storage)) return {};
  // On all ranks alike, also where only some cache something: reading it may communicate.
  if (meta_for_read(t).storage->cached.if_made() == nullptr) return {};
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
  add_to_cache(meta.storage, memory_range_of(t), std::move(layout), writes_of(*meta.storage), current_recording(),
               copy.spec->max_local_bytes(), /*gathered=*/true);
}

PendingMove choose_move(const at::Tensor& t, std::shared_ptr<const RedistributePlan> plan) {
  const DTensorMeta& meta = meta_for_read(t);
  LocalStorage& storage = *meta.storage;
  PendingMove pending{memory_range_of(t), std::move(plan), writes_of(storage), current_recording()};
  CachedState* cached = storage.cached.if_made();
  if (cached == nullptr || !may_cache(storage)) return pending;
  std::lock_guard lock(cached->mutex);
  const MemoryRange* base = find_base(*cached, t, meta);
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
  if (meta_without_sync(of).storage != meta.storage || !may_cache(*meta.storage)) return false;
  if (!is_worth_caching(*pending.of.spec, *pending.plan)) return false;
  return provides(pending.of, pending.plan->to.placements(), t, *meta.spec, plan.to.placements());
}

bool will_be_cached(const at::Tensor& t, const RedistributePlan& plan) {
  const DTensorMeta& meta = meta_without_sync(t);
  return may_cache(*meta.storage) && is_worth_caching(*meta.spec, plan);
}

RankTensors finish_move(const at::Tensor& t, const Placements& to, PendingMove pending, RankTensors moved) {
  const DTensorMeta& meta = meta_without_sync(t);
  RankTensors result = provide(pending.of, *pending.plan, moved, t, to);
  if (!may_cache(*meta.storage) || !is_worth_caching(*pending.of.spec, *pending.plan)) return result;
  const int64_t bytes = moved_bytes(*pending.of.spec, *pending.plan);
  auto counts = std::make_shared<LocalStorage>(meta.spec->mesh().world(), bytes);
  add_to_cache(meta.storage, std::move(pending.of),
               CachedLayout{std::move(pending.plan), std::move(moved), std::move(counts)}, pending.writes,
               pending.recording, bytes);
  return result;
}

}  // namespace dtensor::internal
