#include "dtensor/views/alias_group.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
namespace {

constexpr int64_t kMostDims = 63;  // represented by a bit

DTensorMeta& mutable_meta(const at::Tensor& t) { return const_cast<DTensorMeta&>(meta_without_sync(t)); }

// Per dim of the view: the dim of the base that it covers whole, index by index; -1: none.
std::vector<int> whole_dims(const DimMap& map, const Shape& view_sizes, const Shape& base_sizes) {
  std::vector<int> whole(view_sizes.size(), -1);
  for (size_t j = 0; j < view_sizes.size(); ++j) {
    const int b = map.base_dim[j];
    if (b >= 0 && map.step[j] == 1 && map.start[b] == 0 && view_sizes[j] == base_sizes[b]) whole[j] = b;
  }
  return whole;
}

uint64_t bits_of(const std::vector<int>& dims) {
  uint64_t bits = 0;
  for (const int d : dims) bits |= d < 0 ? 0 : uint64_t{1} << d;
  return bits;
}

// Whether all ranks have `t` whole, and it fills its memory.
bool is_replicated_base(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  const Spec& spec = *meta.spec;
  return spec.is_replicated() && !meta.arriving && !meta.storage->origin && !meta.storage->user_may_write &&
         spec.mesh().ranks().size() > 1 && spec.ndim() > 0 && spec.ndim() <= kMostDims && t.storage_offset() == 0 &&
         t.is_non_overlapping_and_dense();
}

AliasGroup* alias_group_of(const LocalStorage& storage) { return storage.alias_group.load(std::memory_order_acquire); }

void share(const at::Tensor& t, bool by_slices) {
  LocalStorage& storage = *meta_without_sync(t).storage;
  std::lock_guard lock(storage.cache_mutex);
  if (storage.shared.load(std::memory_order_relaxed)) return;
  auto group = std::make_unique<AliasGroup>(t, by_slices);
  group->add(mutable_meta(t), window_of(*spec_of(t), 0));
  storage.alias_group.store(group.release(), std::memory_order_release);
  storage.shared.store(true, std::memory_order_release);  // a reader that sees the flag sees the aliases
}

}  // namespace

AliasGroup::AliasGroup(const at::Tensor& whole, bool by_slices)
    : spec_(spec_of(whole)), locals_(meta_without_sync(whole).locals), by_slices_(by_slices) {
  for (int64_t d = 0; d < spec_->ndim(); ++d) dims_ |= spec_->sizes()[d] > 1 ? uint64_t{1} << d : 0;
}

void AliasGroup::end() {
  dims_ = 0;
  members_.clear();
  locals_.clear();
}

void AliasGroup::add(DTensorMeta& meta, const Window& window) {
  std::lock_guard lock(mutex_);
  if (dims_ == 0) return;
  auto map = meta.spec->dtype() == spec_->dtype() ? map_dims(window, window_of(*spec_, 0)) : std::nullopt;
  dims_ &= map ? bits_of(whole_dims(*map, window.sizes, spec_->sizes())) : 0;
  if (dims_ == 0) return end();
  members_.insert_or_assign(&meta, *std::move(map));
}

void AliasGroup::remove(DTensorMeta& meta) {
  std::lock_guard lock(mutex_);
  members_.erase(&meta);
}

uint64_t AliasGroup::splittable(const DTensorMeta& meta, const Limits& limits) const {
  std::lock_guard lock(mutex_);
  const auto it = members_.find(const_cast<DTensorMeta*>(&meta));
  if (it == members_.end() || (by_slices_ && meta.spec->meta().numel() == spec_->meta().numel())) return 0;
  if (limits.any() && 2 * spec_->max_local_bytes() > limits.max_bytes) return 0;
  const std::vector<int> whole = whole_dims(it->second, meta.spec->sizes(), spec_->sizes());
  uint64_t bits = 0;
  for (size_t j = 0; j < whole.size(); ++j) {
    if (whole[j] >= 0 && (dims_ >> whole[j] & 1) != 0) bits |= uint64_t{1} << j;
  }
  return bits;
}

void AliasGroup::keep() {
  std::lock_guard lock(mutex_);
  end();
}

RankTensors AliasGroup::parts_of(const DTensorMeta& meta, const DimMap& map) const {
  RankTensors parts;
  for (size_t r = 0; r < locals_.size(); ++r) {
    const at::Tensor& whole = locals_[r];
    int64_t offset = whole.storage_offset();
    for (size_t b = 0; b < map.start.size(); ++b) offset += map.start[b] * whole.stride(static_cast<int64_t>(b));
    std::vector<int64_t> strides;
    for (size_t j = 0; j < map.base_dim.size(); ++j)
      strides.push_back(map.base_dim[j] < 0 ? 0 : map.step[j] * whole.stride(map.base_dim[j]));
    const Shape sizes = meta.spec->local_shape(static_cast<int64_t>(r));
    parts.push_back(at::as_strided(whole, {sizes.data(), sizes.size()}, strides, offset));
  }
  return parts;
}

void AliasGroup::split(const DTensorMeta& by, const Placements& to) {
  std::lock_guard lock(mutex_);
  const auto it = members_.find(const_cast<DTensorMeta*>(&by));
  TORCH_INTERNAL_ASSERT(it != members_.end(), "a tensor is to be split with others, and does not share their memory");
  Placements all = to;  // of the whole tensor
  const std::vector<int> split_dims = whole_dims(it->second, by.spec->sizes(), spec_->sizes());
  for (Placement& p : all) {
    if (p.is_shard()) p = Shard(split_dims[p.dim()]);
  }
  LocalGuard guard;
  const auto plan = cached_plan(spec_, all, current_dispatch_scope().limits);
  RankTensors parts = run_plan(*plan, locals_, {});
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].is_alias_of(locals_[r])) parts[r] = parts[r].clone();  // to free the whole tensor
  }
  locals_ = std::move(parts);
  for (auto& [meta, map] : members_) {
    const std::vector<int> dims = whole_dims(map, meta->spec->sizes(), spec_->sizes());
    Placements placements = all;
    for (Placement& p : placements) {
      if (p.is_shard()) p = Shard(std::find(dims.begin(), dims.end(), p.dim()) - dims.begin());
    }
    meta->spec = meta->spec->with_placements(placements);
    meta->locals = parts_of(*meta, map);
  }
  spec_ = spec_->with_placements(all);
  LocalStorage& storage = *by.storage;
  storage.hold.resize(spec_->max_local_bytes());
  reset_cache(storage, {spec_, 0, /*is_dense=*/true, {}, locals_});
  end();
}

void open_layout(const at::Tensor& t) {
  if (is_replicated_base(t)) share(t, /*by_slices=*/true);
}

void begin_aliasing(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (meta.storage->shared.load(std::memory_order_acquire)) return;
  if (meta.laid_out_by_engine && is_replicated_base(t)) return share(t, /*by_slices=*/false);
  meta.storage->shared.store(true, std::memory_order_relaxed);
}

void join_alias_group(const at::Tensor& t) {
  if (AliasGroup* group = alias_group_of(*meta_without_sync(t).storage))
    group->add(mutable_meta(t), window_of(*spec_of(t), t.storage_offset()));
}

void keep_alias_layouts(LocalStorage& storage) {
  if (AliasGroup* group = alias_group_of(storage)) group->keep();
}

void shard_alias_group(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = meta_without_sync(t);
  alias_group_of(*meta.storage)->split(meta, to);
}

// Declared in representation.h.

LocalStorage::~LocalStorage() { delete alias_group_of(*this); }

DTensorMeta::~DTensorMeta() {
  AliasGroup* group = storage ? alias_group_of(*storage) : nullptr;
  if (group != nullptr) group->remove(*this);
}

}  // namespace dtensor
