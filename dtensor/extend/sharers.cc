#include "dtensor/extend/sharers.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/clone.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "dtensor/extend/dispatch_scope.h"
#include "dtensor/extend/reduced_forms.h"
#include "dtensor/internal/executor.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
namespace {

constexpr size_t kMostDims = 64;  // that have a bit

Window window_of(const Spec& spec, int64_t offset) { return {spec.sizes(), spec.strides(), offset}; }

// Per dim of the view: the dim of the base that it has whole, index by index; -1: none.
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

// Is `t` an operator's result that all ranks have whole, and that nobody shares yet?
bool may_be_split(const at::Tensor& t) {
  const DTensorMeta& meta = peek_meta(t);
  const LocalStorage& storage = *meta.storage;
  const DeviceMesh& mesh = meta.spec->mesh();
  return meta.laid_out_by_engine && meta.spec->is_replicated() && !meta.arriving && !storage.origin &&
         !storage.given_away && mesh.ranks().size() > 1 && meta.spec->ndim() > 0 &&
         meta.spec->ndim() <= static_cast<int64_t>(kMostDims) && t.storage_offset() == 0 &&
         t.is_non_overlapping_and_dense();
}

Sharers* sharers_of(const LocalStorage& storage) { return storage.sharers.load(std::memory_order_acquire); }

}  // namespace

Sharers::Sharers(const at::Tensor& whole) : spec_(spec_of(whole)), locals_(peek_meta(whole).locals) {
  for (int64_t d = 0; d < spec_->ndim(); ++d) dims_ |= spec_->sizes()[d] > 1 ? uint64_t{1} << d : 0;
}

const Sharers::Sharer* Sharers::find(const DTensorMeta& meta) const {
  const auto it = std::find_if(sharers_.begin(), sharers_.end(), [&](const Sharer& s) { return s.meta == &meta; });
  return it == sharers_.end() ? nullptr : &*it;
}

void Sharers::add(DTensorMeta& meta, const Window& window) {
  std::lock_guard lock(mutex_);
  if (dims_ == 0) return;
  auto map = meta.spec->dtype() == spec_->dtype() ? map_dims(window, window_of(*spec_, 0)) : std::nullopt;
  dims_ &= map ? bits_of(whole_dims(*map, window.sizes, spec_->sizes())) : 0;
  if (dims_ == 0) {
    sharers_.clear();
    locals_.clear();
  } else {
    sharers_.push_back({&meta, *std::move(map)});
  }
}

void Sharers::remove(const DTensorMeta& meta) {
  std::lock_guard lock(mutex_);
  sharers_.erase(std::remove_if(sharers_.begin(), sharers_.end(), [&](const Sharer& s) { return s.meta == &meta; }),
                 sharers_.end());
}

uint64_t Sharers::splittable(const DTensorMeta& meta) const {
  std::lock_guard lock(mutex_);
  const Sharer* sharer = find(meta);
  if (sharer == nullptr) return 0;
  const std::vector<int> whole = whole_dims(sharer->map, meta.spec->sizes(), spec_->sizes());
  uint64_t bits = 0;
  for (size_t j = 0; j < whole.size(); ++j) {
    if (whole[j] >= 0 && (dims_ >> whole[j] & 1) != 0) bits |= uint64_t{1} << j;
  }
  return bits;
}

void Sharers::keep() {
  std::lock_guard lock(mutex_);
  dims_ = 0;
  sharers_.clear();
  locals_.clear();
}

RankTensors Sharers::parts_of(const Sharer& sharer) const {
  RankTensors parts;
  const DimMap& map = sharer.map;
  for (size_t r = 0; r < locals_.size(); ++r) {
    const at::Tensor& whole = locals_[r];
    int64_t offset = whole.storage_offset();
    for (size_t b = 0; b < map.start.size(); ++b) offset += map.start[b] * whole.stride(static_cast<int64_t>(b));
    std::vector<int64_t> strides;
    for (size_t j = 0; j < map.base_dim.size(); ++j)
      strides.push_back(map.base_dim[j] < 0 ? 0 : map.step[j] * whole.stride(map.base_dim[j]));
    const Shape sizes = sharer.meta->spec->local_shape(static_cast<int64_t>(r));
    parts.push_back(at::as_strided(whole, {sizes.data(), sizes.size()}, strides, offset));
  }
  return parts;
}

void Sharers::split(const DTensorMeta& meta, const Placements& to) {
  std::lock_guard lock(mutex_);
  const Sharer* by = find(meta);
  TORCH_INTERNAL_ASSERT(by != nullptr, "a tensor is to be split with others that it is not known to share memory with");
  const auto whole_dims_of = [&](const Sharer& sharer) {
    return whole_dims(sharer.map, sharer.meta->spec->sizes(), spec_->sizes());
  };
  Placements all = to;  // of the whole tensor
  const std::vector<int> split = whole_dims_of(*by);
  for (Placement& p : all) {
    if (p.is_shard()) p = Shard(split[p.dim()]);
  }
  std::vector<SpecPtr> specs;
  for (const Sharer& sharer : sharers_) {
    const std::vector<int> dims = whole_dims_of(sharer);
    Placements placements = all;
    for (Placement& p : placements) {
      if (p.is_shard()) p = Shard(std::find(dims.begin(), dims.end(), p.dim()) - dims.begin());
    }
    specs.push_back(sharer.meta->spec->with_placements(placements));
  }

  LocalGuard guard;
  const auto plan = cached_plan(spec_, all, current_dispatch_scope().limits);
  RankTensors parts = run_plan(*plan, locals_, {});
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].is_alias_of(locals_[r])) parts[r] = parts[r].clone();  // to let go of the whole
  }
  spec_ = spec_->with_placements(all);
  locals_ = std::move(parts);
  for (size_t k = 0; k < sharers_.size(); ++k) {
    sharers_[k].meta->spec = specs[k];
    sharers_[k].meta->locals = parts_of(sharers_[k]);
  }
  LocalStorage& storage = *meta.storage;
  storage.hold.resize(spec_->max_local_bytes());
  note_whole(storage, spec_, locals_);
  dims_ = 0;
  sharers_.clear();
  locals_.clear();
}

void open_layout(const at::Tensor& t) {
  const_cast<DTensorMeta&>(peek_meta(t)).laid_out_by_engine = true;
  begin_sharing(t);
}

void begin_sharing(const at::Tensor& t) {
  LocalStorage& storage = *peek_meta(t).storage;
  if (storage.shared.load(std::memory_order_relaxed)) return;
  if (!may_be_split(t)) {
    storage.shared.store(true, std::memory_order_relaxed);
    return;
  }
  std::lock_guard lock(storage.reduced_mutex);
  if (storage.shared.exchange(true)) return;  // another thread has begun
  auto sharers = std::make_unique<Sharers>(t);
  sharers->add(const_cast<DTensorMeta&>(peek_meta(t)), window_of(*spec_of(t), 0));
  storage.sharers.store(sharers.release(), std::memory_order_release);
}

void join_sharers(const at::Tensor& t) {
  if (Sharers* sharers = sharers_of(*peek_meta(t).storage))
    sharers->add(const_cast<DTensorMeta&>(peek_meta(t)), window_of(*spec_of(t), t.storage_offset()));
}

void leave_sharers(const DTensorMeta& meta) {
  if (Sharers* sharers = sharers_of(*meta.storage)) sharers->remove(meta);
}

void keep_layout_of_sharers(LocalStorage& storage) {
  if (Sharers* sharers = sharers_of(storage)) sharers->keep();
}

void split_sharers(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = peek_meta(t);
  sharers_of(*meta.storage)->split(meta, to);
}

}  // namespace dtensor
