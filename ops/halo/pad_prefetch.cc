#include "ops/halo/pad_prefetch.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/comm_work.h"
#include "dtensor/layout_cache/ghost_region.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/declared_region.h"
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// The input at the time of the call: its parts, or the boxes of its declared ghost region.
using Snapshot = std::shared_ptr<const LazyParts::Made>;

Snapshot copy_of_parts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_for_read(t);
  auto result = std::make_shared<LazyParts::Made>();
  result->storage = std::make_shared<LocalStorage>(meta.spec->mesh().world(), meta.spec->max_local_bytes());
  LocalGuard guard;
  for (const at::Tensor& part : meta.locals) result->parts.push_back(at::clone(part));
  return result;
}

// A plan, and the local tensors for it.
struct Fetch {
  std::shared_ptr<const HaloPlan> plan;
  Snapshot from;
};
struct Fetches {
  Fetch windows, parts;  // of the padded tensor
};

Fetches fetches_of(const HaloDecision& decision, const at::Tensor& self, const CommCause& cause) {
  const Snapshot parts = decision.later_within && decision.within ? nullptr : copy_of_parts(self);
  Fetches fetches{{decision.later, parts}, {decision.plan, parts}};
  if (!decision.later_within) return fetches;
  const auto region = periodic_region(*decision.declared, self, decision.later->bytes, cause);
  const auto boxes = std::make_shared<LazyParts::Made>(boxes_along(*region, *spec_of(self), decision.later->dims));
  fetches.windows = {decision.later_within, boxes};
  if (decision.within) fetches.parts = {decision.within, boxes};
  return fetches;
}

}  // namespace

std::optional<HaloRequest> windows_request(const SpecPtr& source, const std::vector<HaloDim>& pads) {
  HaloRequest request{source, source, pads};
  for (HaloDim& d : request.dims) {
    const int64_t more = d.map.size - source->sizes()[d.dim];
    const auto parts = runs_along(*source, d.dim);
    const auto is_smaller = [&](const IndexRange& run) { return run.size < more; };
    if (more < 0 || !parts || std::any_of(parts->begin(), parts->end(), is_smaller)) return std::nullopt;
    d.reach = [more](const IndexRanges& own) {
      IndexRanges wanted = own;
      for (IndexRange& run : wanted) run.size += more;
      return wanted;
    };
  }
  return request;
}

at::Tensor pad_lazily(const HaloDecision& decision, const at::Tensor& self, const at::Scalar& fill,
                      const CommCause& cause) {
  const auto [windows, own] = fetches_of(decision, self, cause);
  const SpecPtr& source = spec_of(self);
  const World& world = source->mesh().world();
  GhostRegion around;
  for (const int64_t dim : decision.later->dims) {
    auto& wider = around.dims.emplace_back(
        GhostRegion::Dim{dim, cutting_mesh_dims(*source, {dim}), runs_along(*source, dim).value()});
    for (IndexRange& run : wider.known) run.size += decision.result->sizes()[dim] - source->sizes()[dim];
  }
  const int64_t bytes = box_bytes(around, *source);
  around.boxes = std::make_shared<LazyParts>([windows = windows, fill, cause, world, bytes] {
    return LazyParts::Made{fetch_halos(*windows.plan, windows.from->parts, fill, cause),
                           std::make_shared<LocalStorage>(world, bytes)};
  });

  const RankTensors parts = empty_halos(*own.plan, own.from->parts, decision.result->strides());
  const auto fetch = [own = own, fill, cause, parts, boxes = around.boxes] {
    fetch_halos(*own.plan, own.from->parts, fill, cause, parts);
    boxes->forget();  // windows that were not requested keep no second tensor alive
  };
  const at::Tensor result = make_dtensor(decision.result, parts, nullptr, CommWork::deferred(fetch));
  cache_ghost_region(result, std::move(around));
  return result;
}

}  // namespace dtensor::internal
