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
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// The padded tensor's input, as it was at that time.
struct Snapshot {
  RankTensors parts;
  std::shared_ptr<LocalStorage> storage;
};

std::shared_ptr<const Snapshot> snapshot_of(const at::Tensor& t) {
  const DTensorMeta& meta = meta_for_read(t);
  auto result = std::make_shared<Snapshot>();
  result->storage = std::make_shared<LocalStorage>(meta.spec->mesh().world(), meta.spec->max_local_bytes());
  LocalGuard guard;
  for (const at::Tensor& part : meta.locals) result->parts.push_back(at::clone(part));
  return result;
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
  const auto snapshot = snapshot_of(self);
  const SpecPtr& source = spec_of(self);
  const World& world = source->mesh().world();
  GhostRegion around;
  for (const int64_t dim : decision.later->dims) {
    auto& wider = around.dims.emplace_back(
        GhostRegion::Dim{dim, cutting_mesh_dims(*source, {dim}), runs_along(*source, dim).value()});
    for (IndexRange& run : wider.known) run.size += decision.result->sizes()[dim] - source->sizes()[dim];
  }
  const int64_t bytes = box_bytes(around, *source);
  around.boxes = std::make_shared<LazyParts>([later = decision.later, snapshot, fill, cause, world, bytes] {
    return LazyParts::Made{fetch_halos(*later, snapshot->parts, fill, cause),
                           std::make_shared<LocalStorage>(world, bytes)};
  });

  const RankTensors parts = empty_halos(*decision.plan, snapshot->parts, decision.result->strides());
  const auto fetch = [plan = decision.plan, snapshot, fill, cause, parts, boxes = around.boxes] {
    fetch_halos(*plan, snapshot->parts, fill, cause, parts);
    boxes->forget();  // windows that were not requested keep no second tensor alive
  };
  const at::Tensor result = make_dtensor(decision.result, parts, nullptr, CommWork::deferred(fetch));
  cache_ghost_region(result, std::move(around));
  return result;
}

}  // namespace dtensor::internal
