#include "ops/stencil/slice_window.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "dtensor/tensor/representation.h"
#include "ops/halo/cut_runs.h"
#include "ops/halo/decision.h"
#include "plan/memo.h"

namespace dtensor::internal {
namespace {

// Whether each dim d of the view steps along dim d of the root only.
bool is_dim_by_dim(const DimMap& map, const Spec& view) {
  for (int64_t d = 0; d < view.ndim(); ++d) {
    if (map.base_dim[d] != d && view.sizes()[d] != 1) return false;
  }
  return true;
}

int64_t step_along(const DimMap& map, int64_t dim) { return std::max<int64_t>(1, map.step[dim]); }

// The run of indices of the root along `dim`, from the first to the last that each rank needs for its part of the view.
std::optional<std::vector<Run>> reached_along(const Spec& root, const Spec& view, const DimMap& map, int64_t dim) {
  if (cutting_mesh_dims(view, {dim}) != cutting_mesh_dims(root, {dim})) return std::nullopt;
  auto reached = runs_along(view, dim);
  if (!reached) return std::nullopt;
  const int64_t step = step_along(map, dim);
  for (Run& run : *reached) run = {map.start[dim] + step * run.begin, step * (run.size - 1) + 1};
  return reached;
}

// Whether each rank holds half of the indices that it needs.
bool is_mostly_own(const Spec& root, int64_t dim, const std::vector<Run>& reached) {
  const auto own = runs_along(root, dim);
  if (!own) return false;
  return std::equal(own->begin(), own->end(), reached.begin(), [](const Run& a, const Run& b) {
    return 2 * (std::min(end_of(a), end_of(b)) - std::max(a.begin, b.begin)) >= b.size;
  });
}

SliceWindowPtr make_window(const SpecPtr& root, const SpecPtr& view, int64_t offset) {
  if (root->ndim() != view->ndim() || root->dtype() != view->dtype() || root->meta().numel() == 0 ||
      view->meta().numel() == 0 || view->placements() != as_addends(root->placements()))
    return nullptr;
  const auto map = map_dims(window_of(*view, offset), window_of(*root, 0));
  if (!map || !is_dim_by_dim(*map, *view)) return nullptr;
  SliceWindow window{root, view, *map, {}, {}, {}, {}};
  HaloRequest request{root, view, {}};
  for (int64_t d = 0; d < root->ndim(); ++d) {
    const int64_t n = root->sizes()[d], step = step_along(*map, d);
    const HaloDim dim{d, sliced(n, map->start[d], view->sizes()[d], step), {}};
    if (!cutting_mesh_dims(*root, {d}).empty()) {
      auto reached = reached_along(*root, *view, *map, d);
      if (!reached) return nullptr;
      window.is_near = window.is_near && is_mostly_own(*root, d, *reached);
      window.cut.push_back(d);
      window.reached.push_back(*std::move(reached));
      if (dim.map.is_identity(n)) continue;
      for (const int64_t m : cutting_mesh_dims(*root, {d})) window.cutting.push_back(m);
      request.dims.push_back(dim);
    } else if (!dim.map.is_identity(n)) {
      window.is_near = window.is_near && 2 * (step * (view->sizes()[d] - 1) + 1) > n;
      request.dims.push_back(dim);
    }
  }
  if (window.cutting.empty()) return nullptr;
  window.plan = make_halo_plan(request);
  return window.plan ? std::make_shared<const SliceWindow>(std::move(window)) : nullptr;
}

// By the specs' numbers and the offset. Null: none.
struct WindowMemo : Memo<std::tuple<uint64_t, uint64_t, int64_t>, SliceWindowPtr, 2048> {};

}  // namespace

SliceWindowPtr slice_window(const SpecPtr& root, const SpecPtr& view, int64_t offset) {
  WindowMemo& memo = root->mesh().world().attachment<WindowMemo>();
  const std::tuple key{root->id(), view->id(), offset};
  if (auto known = memo.find(key)) return *known;
  SliceWindowPtr window = make_window(root, view, offset);
  memo.insert(key, window, {root, view});
  return window;
}

bool lies_in(const GhostRegion& around, const SliceWindow& window) {
  const Spec& root = *window.root;
  for (size_t k = 0; k < window.cut.size(); ++k) {
    const auto at = std::find(around.dims.begin(), around.dims.end(), window.cut[k]) - around.dims.begin();
    const bool beyond = at < static_cast<int64_t>(around.dims.size());  // the parts
    const auto box = beyond ? around.known[at] : runs_along(root, window.cut[k]);
    if (!box || !contain(*box, window.reached[k])) return false;
    if (beyond && around.cut_by[at] != cutting_mesh_dims(root, {window.cut[k]})) return false;
  }
  return true;
}

bool take_from(const GhostRegion& around, const SliceWindow& window, const RankTensors& parts) {
  if (!lies_in(around, window)) return false;
  const Spec& root = *window.root;
  const LazyParts::Made* made = around.boxes->get();
  if (made == nullptr) return false;
  LocalGuard guard;
  const auto ranks = root.mesh().local_ranks();
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part known = box_of_rank(around, root, ranks[i]);
    const at::Tensor& box = made->parts[i];
    Shape strides(root.ndim(), 0), first = window.map.start;
    for (size_t k = 0; k < window.cut.size(); ++k)
      first[window.cut[k]] = window.reached[k][place_of(root, window.cut[k], ranks[i])].begin;
    int64_t offset = box.storage_offset();
    for (int64_t d = 0; d < root.ndim(); ++d) {
      strides[d] = step_along(window.map, d) * box.stride(d);
      offset += (first[d] - known.dims[d][0].begin) * box.stride(d);
    }
    parts[i].copy_(box.as_strided(parts[i].sizes(), at::IntArrayRef(strides.data(), strides.size()), offset));
  }
  return true;
}

}  // namespace dtensor::internal
