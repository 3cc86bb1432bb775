#include "dtensor/layout_cache/cached_facts.h"

#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>

namespace dtensor::internal {
namespace {

bool is_real(const Spec& spec) { return !c10::isComplexType(spec.dtype()); }

}  // namespace

bool is_about(const CacheEntry& entry, const at::Tensor& t, const DTensorMeta& meta) {
  return entry.of.spec == meta.spec && entry.of.offset == t.storage_offset() && entry.of.seen == meta.seen;
}

void add_fact(const at::Tensor& t, CachedValue value, int64_t bytes) {
  const auto& storage = meta_without_sync(t).storage;
  add_to_cache(storage, memory_range_of(t), std::move(value), writes_of(*storage), current_recording(), bytes);
}

bool may_cache_facts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  return may_cache(*meta.storage) && is_real(*meta.spec);
}

bool may_cache_facts_of_new(const Spec& spec) { return is_real(spec) && !c10::InferenceMode::is_enabled(); }

void cache_sums(const at::Tensor& t, int64_t dim, at::Tensor sums) {
  if (!may_cache(*meta_without_sync(t).storage)) return;
  const int64_t bytes = spec_of(sums)->max_local_bytes();  // the memory meter counts them as a tensor
  add_fact(t, CachedSums{std::move(sums), dim}, bytes);
}

at::Tensor cached_sums(const at::Tensor& t, int64_t dim) {
  const auto found = find_fact<CachedSums>(t, meta_for_read(t), [&](const CachedSums& s) { return s.dim == dim; });
  return found ? found->sums : at::Tensor();
}

void cache_margins(const at::Tensor& t, int64_t dim, int64_t width, RankTensors margins, int64_t bytes) {
  if (!may_cache_facts(t)) return;
  auto storage = std::make_shared<LocalStorage>(spec_of(t)->mesh().world(), bytes);
  add_fact(t, CachedMargins{dim, width, std::move(margins), std::move(storage)}, bytes);
}

std::optional<CachedMargins> cached_margins(const at::Tensor& t, int64_t dim, int64_t width) {
  return find_fact<CachedMargins>(t, meta_for_read(t),
                                  [&](const CachedMargins& m) { return m.dim == dim && m.width >= width; });
}

}  // namespace dtensor::internal
