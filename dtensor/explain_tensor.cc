// DTensor::explain().
#include <mutex>
#include <sstream>
#include <variant>
#include <vector>

#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/local_parts.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/ghost_width.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_plan.h"

namespace dtensor {
using namespace internal;

namespace {

void write_layout(std::ostream& os, const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  os << "  layout: " << (meta.laid_out_by_engine ? "chosen by the engine" : "set by the user or taken from an input")
     << "; a write to the tensor " << (has_mutable_layout(t) ? "may change it" : "keeps it") << '\n';
  if (is_leaf_parameter(t)) os << "  parameter: its gradient gets this layout\n";
  if (is_unwritten_factory_result(t)) os << "  made by a factory: operators may shard it without communication\n";
  if (const auto width = ghost_width(t); !width.empty()) os << "  ghost width: " << c10::IntArrayRef(width) << '\n';
  if (meta.hints.any()) os << "  " << meta.hints.to_string() << '\n';
}

// Whether the values are there.
void write_state(std::ostream& os, const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  const auto& observer = meta.storage->observer;
  if (const std::string view = observer ? observer->description() : ""; !view.empty()) {
    os << "  " << view << ": " << (has_parts(t) ? "up to date" : "fetched by the next operator that reads it") << '\n';
  } else if (meta.arriving && meta.arriving->needs_all_ranks()) {
    os << "  arriving: the next operator that reads it begins a collective\n";
  } else if (meta.arriving && !meta.arriving->done()) {
    os << "  arriving: a collective has begun and fills in the local tensors\n";
  }
  if (meta.storage->user_may_write) os << "  exposed: the user may write to the local tensors, so nothing is cached\n";
}

std::string description(const CacheEntry& entry) {
  const std::string of = entry.of.spec->to_short_string();
  std::ostringstream os;
  if (const auto* layout = std::get_if<CachedLayout>(&entry.value)) {
    const bool is_arriving = layout->arriving && !layout->arriving->done();
    os << of << " as " << to_string(layout->plan->to.placements()) << (is_arriving ? ", arriving" : "");
  } else if (const auto* sums = std::get_if<CachedSums>(&entry.value)) {
    os << "sums of " << of << " along dim " << sums->dim;
  } else if (const auto* margins = std::get_if<CachedMargins>(&entry.value)) {
    os << "margins of " << of;
    if (margins->dim < entry.of.spec->ndim()) os << ", " << margins->width << " along dim " << margins->dim;
  } else {
    const auto& region = std::get<CachedGhostRegion>(entry.value);
    std::vector<int64_t> dims;
    for (const auto& wider : region->dims) dims.push_back(wider.dim);
    os << (region->periodic ? "periodic ghost region of " : "ghost region of ") << of << " along dims "
       << c10::IntArrayRef(dims) << (region->boxes->if_made() == nullptr ? ", not fetched" : "");
  }
  return os.str();
}

std::vector<CacheEntry> current_entries(LocalStorage& storage) {
  std::vector<CacheEntry> entries;
  CachedState* cached = storage.cached.if_made();
  if (cached == nullptr) return entries;
  std::lock_guard lock(cached->mutex);
  if (!cached->contents) return entries;
  for (const CacheEntry& entry : cached->contents->entries) {
    if (entry.writes == writes_of(storage)) entries.push_back(entry);
  }
  return entries;
}

void write_cache(std::ostream& os, const at::Tensor& t) {
  LocalStorage& storage = *meta_without_sync(t).storage;
  const std::vector<CacheEntry> entries = current_entries(storage);
  int64_t total = 0;
  for (const CacheEntry& entry : entries) total += entry.counted_in->bytes_of(entry.id);
  os << "  cached for it and its views: " << total
     << " bytes; limit of all tensors on a rank: " << remembered_limit(meta_without_sync(t).spec->mesh().world())
     << " bytes\n";
  for (const CacheEntry& entry : entries)
    os << "    " << description(entry) << ": " << entry.counted_in->bytes_of(entry.id) << " bytes\n";
}

}  // namespace

std::string DTensor::explain() const {
  const DTensorMeta& meta = meta_without_sync(tensor_);
  std::ostringstream os;
  os << meta.spec->to_string();
  if (meta.name) os << ", named " << *meta.name;
  os << '\n';
  write_layout(os, tensor_);
  write_state(os, tensor_);
  write_cache(os, tensor_);
  return os.str();
}

}  // namespace dtensor
