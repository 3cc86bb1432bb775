#include "ops/halo_surroundings.h"

#include <ATen/ops/clone.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

std::vector<int64_t> mesh_dims_that_cut(const Spec& spec, int64_t dim) {
  std::vector<int64_t> mesh_dims;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (spec.placements()[m].is_sharded_on(dim)) mesh_dims.push_back(m);
  }
  return mesh_dims;
}

// Where a rank stands along the mesh dims that cut `dim`.
int64_t place_of(const Spec& spec, int64_t dim, int64_t rank) {
  const auto coordinate = spec.mesh().coordinate(rank);
  int64_t place = 0;
  for (const int64_t m : mesh_dims_that_cut(spec, dim)) place = place * spec.mesh().size(m) + coordinate[m];
  return place;
}

// The indices of a dim that ranks hold, by where they stand. Nullopt: some hold none, or several pieces.
std::optional<std::vector<Run>> runs_along(const Spec& spec, int64_t dim) {
  const std::vector<int64_t> mesh_dims = mesh_dims_that_cut(spec, dim);
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

}  // namespace

std::optional<HaloRequest> surroundings_request(const SpecPtr& source, const SpecPtr& padded,
                                                const std::vector<HaloDim>& pads) {
  HaloRequest request{source, padded, pads};
  for (HaloDim& d : request.dims) {
    const int64_t more = padded->sizes()[d.dim] - source->sizes()[d.dim];
    const auto before = runs_along(*source, d.dim), after = runs_along(*padded, d.dim);
    if (more < 0 || !before || !after) return std::nullopt;
    std::vector<std::pair<Run, Run>> wanted;  // of those that hold the first
    for (size_t i = 0; i < after->size(); ++i) {
      const Run &was = (*before)[i], &own = (*after)[i];
      const int64_t begin = std::min(was.begin, own.begin), end = std::max(end_of(was) + more, end_of(own));
      wanted.emplace_back(own, Run{begin, end - begin});
    }
    d.reach = [wanted = std::move(wanted)](const Runs& own) {
      const auto is_it = [&](const auto& w) { return own.size() == 1 && w.first == own[0]; };
      return Runs{std::find_if(wanted.begin(), wanted.end(), is_it)->second};
    };
  }
  return request;
}

Surroundings surroundings_of(const HaloRequest& request, RankTensors boxes) {
  Surroundings result;
  for (const HaloDim& d : request.dims) {
    result.dims.push_back(d.dim);
    auto& known = result.known.emplace_back();
    const std::vector<Run> parts = runs_along(*request.result, d.dim).value();
    for (const Run& own : parts) known.push_back(d.reach(Runs{own})[0]);
  }
  result.locals = std::move(boxes);
  return result;
}

RankTensors own_parts(const Surroundings& known, const Spec& spec) {
  LocalGuard guard;
  const auto ranks = spec.mesh().local_ranks();
  RankTensors parts;
  for (size_t i = 0; i < known.locals.size(); ++i) {
    at::Tensor part = known.locals[i];
    for (size_t k = 0; k < known.dims.size(); ++k) {
      const int64_t dim = known.dims[k];
      const Run own = spec.layout_of_rank(ranks[i]).dims[dim][0];
      part = part.narrow(dim, own.begin - known.known[k][place_of(spec, dim, ranks[i])].begin, own.size);
    }
    parts.push_back(at::clone(part, at::MemoryFormat::Contiguous));
  }
  return parts;
}

std::optional<Surroundings> sliced_surroundings(const Surroundings& known, const Spec& view, int64_t dim,
                                                int64_t begin) {
  const auto at = std::find(known.dims.begin(), known.dims.end(), dim) - known.dims.begin();
  const auto own = runs_along(view, dim);
  if (at == static_cast<int64_t>(known.dims.size()) || !own || own->size() != known.known[at].size())
    return std::nullopt;
  Surroundings result = known;
  std::vector<int64_t> cut_off;
  for (size_t i = 0; i < own->size(); ++i) {
    Run& run = result.known[at][i];
    const int64_t first = std::max(run.begin, begin), last = std::min(end_of(run), begin + view.sizes()[dim]);
    cut_off.push_back(first - run.begin);
    run = {first - begin, last - first};
    if (!contains(run, (*own)[i])) return std::nullopt;
  }
  LocalGuard guard;
  const auto ranks = view.mesh().local_ranks();
  for (size_t i = 0; i < result.locals.size(); ++i) {
    const int64_t place = place_of(view, dim, ranks[i]);
    result.locals[i] = result.locals[i].narrow(dim, cut_off[place], result.known[at][place].size);
  }
  return result;
}

}  // namespace dtensor
