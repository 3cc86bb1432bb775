#include "ops/reduction/rank_shares.h"

#include <algorithm>
#include <utility>

namespace dtensor::internal {

bool cuts(const Placement& p, const std::vector<int64_t>& dims) {
  return p.is_sharded() && std::binary_search(dims.begin(), dims.end(), p.dim());
}

int64_t Shares::position(const Spec& spec, const std::vector<int64_t>& dims, c10::ArrayRef<int64_t> coordinate) const {
  int64_t p = 0;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (cuts(spec.placements()[m], dims)) p = p * spec.mesh().size(m) + coordinate[m];
  }
  return p;
}

Shares shares_of(const Spec& spec, const SummaryRequest& request) {
  const DeviceMesh& mesh = spec.mesh();
  std::vector<int64_t> cutting;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (cuts(spec.placements()[m], request.dims)) cutting.push_back(m);
  }
  Shares shares;
  std::vector<int64_t> coordinate(static_cast<size_t>(mesh.ndim()), 0);
  for (;;) {
    LocalLayout part = local_layout(spec.sizes(), mesh.shape(), spec.placements(), coordinate);
    shares.counts.push_back(request.count(part));
    shares.width = std::max(shares.width, shares.counts.back());
    shares.parts.push_back(std::move(part));
    size_t i = cutting.size();
    while (i > 0 && ++coordinate[cutting[i - 1]] == mesh.size(cutting[i - 1])) coordinate[cutting[--i]] = 0;
    if (i == 0) return shares;
  }
}

std::vector<at::Tensor> rank_summaries(const DTensorMeta& meta, size_t i, const Shares& shares,
                                       const SummaryRequest& request) {
  LocalGuard guard;
  const Spec& spec = *meta.spec;
  const auto rank = static_cast<int64_t>(i);
  const int64_t p = shares.position(spec, request.dims, spec.mesh().local_coordinate(rank));
  const int64_t width = shares.width * request.groups;
  if (shares.counts[p] > 0 && meta.locals[i].numel() > 0) {
    return request.summarize(meta.locals[i], spec.local_layout(rank), width);
  }
  Shape empty = spec.local_shape(rank);
  for (const int64_t d : request.dims) empty[d] = 1;
  empty[request.dims[0]] = width;
  std::vector<at::Tensor> none;
  for (const auto dtype : request.dtypes) {
    none.push_back(meta.locals[i].new_zeros(at::IntArrayRef(empty), meta.locals[i].options().dtype(dtype)));
  }
  return none;
}

}  // namespace dtensor::internal
