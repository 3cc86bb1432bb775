#include "ops/halo/roll.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/roll.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "dtensor/layout_cache/cached_facts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/tensor/representation.h"
#include "ops/halo/declared_region.h"
#include "ops/halo/exchange.h"
#include "placement/placement.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

// ------------------------------------------------------------ with a declared width

// The part of a rank, rolled, from its box. `own`: its part of the tensor; `box`: the indices in the box.
at::Tensor rolled_part(at::Tensor part, const LocalLayout& own, const LocalLayout& box, const GhostRegion& region,
                       const std::vector<HaloDim>& dims) {
  std::vector<int64_t> shifts, along;  // of dims that no rank boundary cuts
  std::vector<int64_t> shift(own.dims.size(), 0);
  for (const HaloDim& d : dims) {
    shift[d.dim] = shift_of(d.map);
    if (region.along(d.dim) != nullptr) continue;
    shifts.push_back(shift[d.dim]);
    along.push_back(d.dim);
  }
  for (const GhostRegion::Dim& d : region.dims) {
    const IndexRange& wanted = own.dims[d.dim][0];
    part = part.narrow(d.dim, wanted.begin - shift[d.dim] - box.dims[d.dim][0].begin, wanted.size);
  }
  return along.empty() ? at::clone(part, at::MemoryFormat::Contiguous) : at::roll(part, shifts, along).contiguous();
}

// What the rank with the largest part would receive for this roll alone.
int64_t received_bytes(const Spec& spec, const std::vector<HaloDim>& dims) {
  const Shape sizes = largest_part(spec.sizes(), spec.mesh().shape(), spec.placements());
  Shape kept = sizes;
  for (const HaloDim& d : dims) {
    if (cutting_mesh_dims(spec, {d.dim}).empty()) continue;
    kept[d.dim] = std::max<int64_t>(0, kept[d.dim] - std::abs(shift_of(d.map)));
  }
  const int64_t elements = c10::multiply_integers(sizes) - c10::multiply_integers(kept);
  return elements * static_cast<int64_t>(c10::elementSize(spec.dtype()));
}

// The cached periodic region of `t` if it is that of the present width; else null. One of another width may be left
// from a handle with other bits or strides, for which the width was declared.
CachedGhostRegion region_of_width(const at::Tensor& t, const DeclaredRegion& declared) {
  meta_for_read(t);  // a copied view drops its region if its base was written to
  auto region = cached_ghost_region(t, /*periodic=*/true);
  if (region && region->dims != declared.region.dims) {
    drop_ghost_region(t, /*periodic=*/true);
    region = nullptr;
  }
  return region;
}

// ------------------------------------------------------------ without: margins of both borders

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

std::optional<at::Tensor> rolled_within_width(const at::Tensor& self, const std::vector<HaloDim>& dims,
                                              const CommCause& cause) {
  const auto declared = self.is_contiguous() ? declared_region(self, /*periodic=*/true) : nullptr;
  if (!declared) return std::nullopt;
  const Spec& spec = *spec_of(self);
  for (const HaloDim& d : dims) {
    const bool is_cut = !cutting_mesh_dims(spec, {d.dim}).empty();
    if (is_cut && std::abs(shift_of(d.map)) > declared->width[d.dim]) return std::nullopt;
  }
  auto region = region_of_width(self, *declared);
  if (region) {
    report_reuse(cause, "ghost region", received_bytes(spec, dims));
  } else {
    region = fetch_region(*declared, self, cause);
  }
  const RankTensors& boxes = region->boxes->get()->parts;
  RankTensors parts;
  {
    LocalGuard guard;
    for (size_t i = 0; i < boxes.size(); ++i) {
      const int64_t rank = spec.mesh().local_ranks()[i];
      parts.push_back(
          rolled_part(boxes[i], spec.layout_of_rank(rank), box_of_rank(*region, spec, rank), *region, dims));
    }
  }
  const at::IntArrayRef sizes(spec.sizes().data(), spec.sizes().size());
  return make_dtensor(Spec::get(spec.mesh(), as_addends(spec.placements()), sizes, spec.dtype()), std::move(parts));
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
