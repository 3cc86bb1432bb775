#include "ops/halo/roll.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>

#include <cstdlib>
#include <utility>

#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/boxes.h"
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// Every rank's part, shifted: elements that enter at one end come from the margins.
RankTensors shifted(const RankTensors& locals, const CachedMargins& margins, int64_t dim, int64_t shift) {
  LocalGuard guard;
  RankTensors result;
  for (size_t i = 0; i < locals.size(); ++i) {
    const at::Tensor& own = locals[i];
    const int64_t kept = own.size(dim) - std::abs(shift);
    if (own.numel() == 0) {
      result.push_back(at::clone(own));
    } else if (shift > 0) {
      result.push_back(
          at::cat({margins.locals[i].narrow(dim, margins.width - shift, shift), own.narrow(dim, 0, kept)}, dim));
    } else {
      result.push_back(
          at::cat({own.narrow(dim, -shift, kept), margins.locals[i].narrow(dim, margins.width, -shift)}, dim));
    }
  }
  return result;
}

}  // namespace

int64_t shift_of(const IndexMap& rolled) {
  const int64_t shift = rolled.stretches.size() < 2 ? 0 : rolled.stretches[1].place;
  return 2 * shift > rolled.size ? shift - rolled.size : shift;
}

std::optional<HaloRequest> both_ways(const SpecPtr& source, const std::vector<HaloDim>& dims) {
  if (dims.size() != 1) return std::nullopt;
  const int64_t dim = dims[0].dim, width = std::abs(shift_of(dims[0].map));
  const DeviceMesh& mesh = source->mesh();
  for (const int64_t rank : mesh.ranks()) {
    const LocalLayout part = local_layout(source->sizes(), mesh.shape(), source->placements(), mesh.coordinate(rank));
    const IndexRanges& runs = part.dims[dim];
    if (!runs.empty() && (runs.size() > 1 || runs[0].size < width)) return std::nullopt;
  }
  HaloDim beside{dim, circular(source->sizes()[dim], width, width), [width](const IndexRanges& own) {
                   IndexRanges places;
                   for (const IndexRange& run : own) {
                     places.push_back({run.begin, width});
                     places.push_back({run.begin + run.size + width, width});
                   }
                   return places;
                 }};
  return HaloRequest{source, source, {std::move(beside)}};
}

RankTensors rolled_parts(const HaloDecision& decision, const at::Tensor& self, const std::vector<HaloDim>& dims,
                         const CommCause& cause) {
  if (!decision.both || !may_cache_facts(self)) return fetch_boxes(decision, self, 0, cause);
  const int64_t dim = dims[0].dim, shift = shift_of(dims[0].map), width = std::abs(shift);
  auto margins = cached_margins(self, dim, width);
  if (margins) {
    report_reuse(cause, "margins", decision.both->bytes);
  } else {
    margins = CachedMargins{dim, width, fetch_halos(*decision.both, meta_for_read(self).locals, 0, cause), nullptr};
    cache_margins(self, dim, width, margins->locals, decision.both->bytes);
  }
  return shifted(meta_for_read(self).locals, *margins, dim, shift);
}

}  // namespace dtensor::internal
