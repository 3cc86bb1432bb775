#include "dtensor/layout_cache/derived_view.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <utility>

#include "dtensor/tensor/local_guard.h"
#include "dtensor/tensor/view_window.h"
#include "placement/with_dim.h"

namespace dtensor::internal {
namespace {

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

// Copies `t` if it has other strides, so that later calls find it in the right ones.
void ensure_strides(at::Tensor& t, c10::IntArrayRef strides) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) <= 1 || t.stride(d) == strides[d]) continue;
    t = at::empty_strided(t.sizes(), strides, t.options()).copy_(t);
    return;
  }
}

// kFromLocal: `view` is the part of the view within `local`, the local tensor of the base before it moved.
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

// Whether this rank's parts of `t` are in the memory of the parts at `base`. False only where one of the two is a copy
// by a local operator.
bool has_parts_of(const MemoryRange& base, const at::Tensor& t) {
  const RankTensors& parts = meta_without_sync(cached_with(t)).locals;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].numel() > 0 && base.locals[i].numel() > 0 && !parts[i].is_alias_of(base.locals[i])) return false;
  }
  return true;
}

}  // namespace

bool is_within(const MemoryRange& base, const Spec& view, int64_t offset) {
  return base.is_dense && view.meta().numel() > 0 && base.spec->mesh() == view.mesh() &&
         base.spec->dtype() == view.dtype() && base.offset <= offset &&
         end_of(view, offset) <= end_of(*base.spec, base.offset);
}

bool can_derive_view(const MemoryRange& base, const Placements& to, const at::Tensor& t, const Placements& view_to) {
  const Derivation how = derivation(base, to, *spec_of(t), t.storage_offset(), view_to);
  return how == Derivation::kFromLocal ? has_parts_of(base, t) : how != Derivation::kNone;
}

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

namespace {

// derive_view() of `t` in a copy by a local operator, or a view of one, from a base that was only reduced.
RankTensors reduce_local_copy(const MemoryRange& base, const Placements& to, RankTensors& moved, const at::Tensor& t) {
  const StorageObserver& copy = *meta_without_sync(t).storage->observer;
  const Placements reduced = without_partials(spec_of(copy.base)->placements());
  const bool is_base = base.spec == spec_of(copy.base) && base.offset == copy.base.storage_offset();
  RankTensors parts = is_base ? moved : derive_view(base, to, moved, copy.base, reduced);
  parts = copy.parts_of_view_of(make_dtensor(spec_of(copy.base)->with_placements(reduced), std::move(parts)));
  LocalGuard guard;
  for (size_t i = 0; i < parts.size(); ++i)
    parts[i] = view_from_local(parts[i], copy.parts_of_view()[i], meta_without_sync(t).locals[i]);
  return parts;
}

}  // namespace

RankTensors derive_view(const MemoryRange& base, const Placements& to, RankTensors& moved, const at::Tensor& t,
                        const Placements& view_to) {
  const DTensorMeta& meta = meta_without_sync(t);
  const Spec& view = *meta.spec;
  const int64_t offset = t.storage_offset();
  const Derivation how = derivation(base, to, view, offset, view_to);
  if (how == Derivation::kFromLocal && !t.is_same(cached_with(t))) return reduce_local_copy(base, to, moved, t);
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

}  // namespace dtensor::internal
