#include "ops/halo/roll.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/roll.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/declared_region.h"
#include "ops/halo/exchange.h"

namespace dtensor::internal {
namespace {

// ------------------------------------------------------------ a declared ghost region

// The box of a rank, cut down to its rolled part. `own`: the rank's part of the tensor.
at::Tensor rolled_box(at::Tensor box, const GhostRegion& region, const LocalLayout& own,
                      const std::vector<int64_t>& width, const std::vector<HaloDim>& dims) {
  std::vector<int64_t> shift(width.size(), 0);
  for (const HaloDim& d : dims) {
    shift[d.dim] = shift_of(d.map);
    if (region.along(d.dim) == nullptr) box = at::roll(box, shift[d.dim], d.dim);
  }
  for (const GhostRegion::Dim& d : region.dims)
    box = box.narrow(d.dim, width[d.dim] - shift[d.dim], own.dims[d.dim][0].size);
  return at::clone(box, at::MemoryFormat::Contiguous);
}

// ------------------------------------------------------------ one way and then the other

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

std::optional<RankTensors> rolled_within_region(const at::Tensor& self, const std::vector<HaloDim>& dims,
                                                const CommCause& cause) {
  const auto declared = declared_region(self, /*periodic=*/true);
  if (!declared) return std::nullopt;
  const Spec& spec = *spec_of(self);
  const std::vector<int64_t> width = ghost_width(self);
  for (const HaloDim& d : dims) {
    const bool is_cut = !cutting_mesh_dims(spec, {d.dim}).empty();
    if (is_cut && std::abs(shift_of(d.map)) > width[d.dim]) return std::nullopt;
  }
  auto region = cached_ghost_region(self, /*periodic=*/true);
  if (region) {
    report_reuse(cause, "ghost region", declared->plan->bytes);
  } else {
    region = fetch_region(*declared, self, cause);
  }
  const RankTensors& boxes = region->boxes->get()->parts;
  LocalGuard guard;
  RankTensors result;
  for (size_t i = 0; i < boxes.size(); ++i)
    result.push_back(rolled_box(boxes[i], *region, spec.layout_of_rank(spec.mesh().local_ranks()[i]), width, dims));
  return result;
}

RankTensors rolled_parts(const HaloDecision& decision, const at::Tensor& self, const std::vector<HaloDim>& dims,
                         const CommCause& cause) {
  if (!decision.both || !may_cache_facts(self))
    return fetch_halos(*decision.plan, meta_for_read(self).locals, 0, cause);
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
