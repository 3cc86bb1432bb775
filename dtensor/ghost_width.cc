#include "dtensor/ghost_width.h"

#include <algorithm>
#include <mutex>

#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

bool withdraws(at::IntArrayRef width) {
  return std::all_of(width.begin(), width.end(), [](int64_t w) { return w == 0; });
}

// Whether `declared` is for `t`.
bool is_for(const DeclaredWidth& declared, const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  return declared.dtype == spec.dtype() && declared.of == window_of(spec, t.storage_offset());
}

void check_width(const at::Tensor& t, at::IntArrayRef width) {
  const DTensorMeta& meta = checked_layout(t, "set_ghost_width");
  TORCH_CHECK_VALUE(width.empty() || static_cast<int64_t>(width.size()) == t.dim(), "[set_ghost_width] `width` ", width,
                    " does not have one value per dim of the tensor of shape ", t.sizes(),
                    "; give 0 for dims that slices leave whole");
  for (size_t d = 0; d < width.size(); ++d) {
    const int64_t most = std::max<int64_t>(0, (t.size(d) - 1) / 2);  // slices have an index left
    TORCH_CHECK_VALUE(width[d] >= 0 && width[d] <= most, "[set_ghost_width] `width` ", width, ": ", width[d],
                      " along dim ", d, " of size ", t.size(d), "; give 0 to ", most);
  }
  TORCH_CHECK_VALUE(withdraws(width) || !meta.storage->user_may_write, "[set_ghost_width] ", meta.spec->to_string(),
                    " has local tensors that the program may write to (from_local(), mutable_local_tensors()), so no "
                    "ghost region of it can be cached; declare the width of a clone() of it");
  TORCH_CHECK_NOT_IMPLEMENTED(withdraws(width) || !t.is_complex(), "[set_ghost_width] ", meta.spec->to_string(),
                              " is complex: ghost regions are cached for real tensors only");
}

}  // namespace

void set_ghost_width(const at::Tensor& t, at::IntArrayRef width) {
  check_width(t, width);
  if (withdraws(width)) width = {};
  if (ghost_width(t) == width) return;
  const DTensorMeta& meta = meta_without_sync(t);
  {
    CachedState& cached = meta.storage->cached.make();
    std::lock_guard lock(cached.mutex);
    auto& widths = cached.ghost_widths;
    std::erase_if(widths, [&](const DeclaredWidth& declared) { return is_for(declared, t); });
    if (!width.empty()) widths.push_back({window_of(*meta.spec, t.storage_offset()), meta.spec->dtype(), width.vec()});
  }
  for (const bool periodic : {false, true}) drop_ghost_region(t, periodic);  // of the former width
}

std::vector<int64_t> ghost_width(const at::Tensor& t) {
  const DTensorMeta& meta = checked_layout(t, "ghost_width");
  CachedState* cached = meta.storage->cached.if_made();
  if (cached == nullptr) return {};
  std::lock_guard lock(cached->mutex);
  for (const DeclaredWidth& declared : cached->ghost_widths) {
    if (is_for(declared, t)) return declared.width;
  }
  return {};
}

}  // namespace dtensor
