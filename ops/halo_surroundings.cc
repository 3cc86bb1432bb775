#include "ops/halo_surroundings.h"

#include <ATen/ops/clone.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "comm/comm_work.h"
#include "dtensor/extend/representation.h"
#include "ops/halo_exchange.h"

namespace dtensor {
namespace {

// Where a rank stands along the mesh dims that cut `dim`.
int64_t place_of(const Spec& spec, int64_t dim, int64_t rank) {
  const auto coordinate = spec.mesh().coordinate(rank);
  int64_t place = 0;
  for (const int64_t m : cutting_mesh_dims(spec, {dim})) place = place * spec.mesh().size(m) + coordinate[m];
  return place;
}

// The indices of a dim that ranks hold, by where they stand. Nullopt: some hold none, or several pieces.
std::optional<std::vector<Run>> runs_along(const Spec& spec, int64_t dim) {
  const std::vector<int64_t> mesh_dims = cutting_mesh_dims(spec, {dim});
  Shape coordinate(spec.mesh().ndim(), 0);
  int64_t places = 1;
  for (const int64_t m : mesh_dims) places *= spec.mesh().size(m);
  std::vector<Run> result;
  for (int64_t place = 0; place < places; ++place) {
    int64_t rest = place;
    for (size_t k = mesh_dims.size(); k-- > 0;) {
      coordinate[mesh_dims[k]] = rest % spec.mesh().size(mesh_dims[k]);
      rest /= spec.mesh().size(mesh_dims[k]);
    }
    const Part part = local_layout(spec.sizes(), spec.mesh().shape(), spec.placements(), coordinate);
    if (part.dims[dim].size() != 1) return std::nullopt;
    result.push_back(part.dims[dim][0]);
  }
  return result;
}

int64_t end_of(const Run& run) { return run.begin + run.size; }

bool contains(const Run& outer, const Run& inner) {
  return outer.begin <= inner.begin && end_of(inner) <= end_of(outer);
}

// Of the largest box; of other dims than `around` a rank has its part of `spec`.
int64_t box_bytes(const Spec& spec, const Surroundings& around) {
  Shape sizes = spec.layout_of_rank(spec.mesh().ranks()[0]).sizes();
  for (size_t k = 0; k < around.dims.size(); ++k) {
    int64_t& size = sizes[around.dims[k]];
    for (const Run& run : around.known[k]) size = std::max(size, run.size);
  }
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(spec.dtype()));
}

// Is every rank's part of `spec` in its box?
bool holds_parts(const Surroundings& known, const Spec& spec) {
  for (size_t k = 0; k < known.dims.size(); ++k) {
    const auto own = runs_along(spec, known.dims[k]);
    if (!own || cutting_mesh_dims(spec, {known.dims[k]}) != known.cut_by[k] || own->size() != known.known[k].size() ||
        !std::equal(own->begin(), own->end(), known.known[k].begin(),
                    [](const Run& part, const Run& box) { return contains(box, part); }))
      return false;
  }
  return true;
}

// Of every part of `whole` the indices kept_of(number of the part) along `dim`, when somebody asks for them.
std::shared_ptr<LateParts> narrowed(std::shared_ptr<LateParts> whole, int64_t dim,
                                    std::function<Run(size_t part)> kept_of) {
  return std::make_shared<LateParts>(
      [whole = std::move(whole), dim, kept_of = std::move(kept_of)]() -> std::optional<LateParts::Made> {
        const LateParts::Made* made = whole->get();
        if (made == nullptr) return std::nullopt;
        LateParts::Made pieces = *made;
        LocalGuard guard;
        for (size_t i = 0; i < pieces.parts.size(); ++i) {
          const Run kept = kept_of(i);
          pieces.parts[i] = pieces.parts[i].narrow(dim, kept.begin, kept.size);
        }
        return pieces;
      });
}

// What was padded, as it was then.
struct Snapshot {
  RankTensors parts;
  std::shared_ptr<LocalStorage> storage;
};

std::shared_ptr<const Snapshot> snapshot_of(const at::Tensor& t) {
  const DTensorMeta& meta = meta_of(t);
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
    const auto is_smaller = [&](const Run& run) { return run.size < more; };
    if (more < 0 || !parts || std::any_of(parts->begin(), parts->end(), is_smaller)) return std::nullopt;
    d.reach = [more](const Runs& own) {
      Runs wanted = own;
      for (Run& run : wanted) run.size += more;
      return wanted;
    };
  }
  return request;
}

at::Tensor pad_late(const HaloDecision& decision, const at::Tensor& self, const at::Scalar& fill,
                    const CommCause& cause) {
  const auto snapshot = snapshot_of(self);
  const SpecPtr& source = spec_of(self);
  const World& world = source->mesh().world();
  Surroundings around;
  for (const int64_t dim : decision.later->dims) {
    around.dims.push_back(dim);
    around.cut_by.push_back(cutting_mesh_dims(*source, {dim}));
    auto& known = around.known.emplace_back(runs_along(*source, dim).value());
    const int64_t more = decision.result->sizes()[dim] - source->sizes()[dim];
    for (Run& run : known) run.size += more;
  }
  const int64_t bytes = box_bytes(*source, around);
  around.boxes = std::make_shared<LateParts>([later = decision.later, snapshot, fill, cause, world, bytes] {
    return std::optional(LateParts::Made{fetch_halos(*later, snapshot->parts, fill, cause),
                                         std::make_shared<LocalStorage>(world, bytes)});
  });

  const RankTensors parts = empty_halos(*decision.plan, snapshot->parts);
  const auto fetch = [plan = decision.plan, snapshot, fill, cause, parts, boxes = around.boxes] {
    fetch_halos(*plan, snapshot->parts, fill, cause, parts);
    boxes->forget();  // no second tensor is kept for windows that nobody has asked for
  };
  const at::Tensor result = make_dtensor(decision.result, parts, nullptr, std::make_shared<CommWork>(fetch));
  note_surroundings(result, std::move(around));
  return result;
}

std::optional<RankTensors> own_parts(const Surroundings& known, const Spec& spec) {
  if (!holds_parts(known, spec)) return std::nullopt;
  const LateParts::Made* made = known.boxes->get();
  if (made == nullptr) return std::nullopt;
  const RankTensors& boxes = made->parts;
  LocalGuard guard;
  const auto ranks = spec.mesh().local_ranks();
  RankTensors parts;
  for (size_t i = 0; i < boxes.size(); ++i) {
    at::Tensor part = boxes[i];
    for (size_t k = 0; k < known.dims.size(); ++k) {
      const int64_t dim = known.dims[k];
      const Run own = spec.layout_of_rank(ranks[i]).dims[dim][0];
      part = part.narrow(dim, own.begin - known.known[k][place_of(spec, dim, ranks[i])].begin, own.size);
    }
    parts.push_back(at::clone(part, at::MemoryFormat::Contiguous));
  }
  return parts;
}

std::optional<Surroundings> sliced_surroundings(const Surroundings& known, const SpecPtr& view, int64_t dim,
                                                int64_t begin) {
  Surroundings result = known;
  const auto at = std::find(known.dims.begin(), known.dims.end(), dim) - known.dims.begin();
  if (at == static_cast<int64_t>(known.dims.size())) {  // one that nothing was added to
    if (!cutting_mesh_dims(*view, {dim}).empty()) return std::nullopt;
    result.boxes = narrowed(known.boxes, dim, [kept = Run{begin, view->sizes()[dim]}](size_t) { return kept; });
    return result;
  }
  const auto own = runs_along(*view, dim);
  if (!own || cutting_mesh_dims(*view, {dim}) != known.cut_by[at] || own->size() != known.known[at].size())
    return std::nullopt;
  std::vector<Run> kept;  // of the boxes
  for (size_t i = 0; i < own->size(); ++i) {
    Run& run = result.known[at][i];
    const int64_t first = std::max(run.begin, begin), last = std::min(end_of(run), begin + view->sizes()[dim]);
    kept.push_back({first - run.begin, last - first});
    run = {first - begin, last - first};
    if (!contains(run, (*own)[i])) return std::nullopt;
  }
  result.boxes = narrowed(known.boxes, dim, [view, dim, kept = std::move(kept)](size_t i) {
    return kept[place_of(*view, dim, view->mesh().local_ranks()[i])];
  });
  return result;
}

}  // namespace dtensor
