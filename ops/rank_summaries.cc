#include "ops/rank_summaries.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/replicate.h"
#include "dtensor/extend/representation.h"

namespace dtensor {
namespace {

bool cuts(const Placement& p, const std::vector<int64_t>& dims) {
  return p.is_sharded() && std::binary_search(dims.begin(), dims.end(), p.dim());
}

// The parts along the dims, one per coordinate of the mesh dims that cut them, row-major.
struct Shares {
  std::vector<Part> parts;
  std::vector<int64_t> counts;  // columns of each
  int64_t width = 0;            // of the widest

  int64_t position(const Spec& spec, const std::vector<int64_t>& dims, c10::ArrayRef<int64_t> coordinate) const {
    int64_t p = 0;
    for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
      if (cuts(spec.placements()[m], dims)) p = p * spec.mesh().size(m) + coordinate[m];
    }
    return p;
  }
};

Shares shares_of(const Spec& spec, const SummaryRequest& request) {
  const DeviceMesh& mesh = spec.mesh();
  std::vector<int64_t> cutting;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (cuts(spec.placements()[m], request.dims)) cutting.push_back(m);
  }
  Shares shares;
  std::vector<int64_t> coordinate(static_cast<size_t>(mesh.ndim()), 0);
  for (;;) {
    Part part = local_layout(spec.sizes(), mesh.shape(), spec.placements(), coordinate);
    shares.counts.push_back(request.count(part));
    shares.width = std::max(shares.width, shares.counts.back());
    shares.parts.push_back(std::move(part));
    size_t i = cutting.size();
    while (i > 0 && ++coordinate[cutting[i - 1]] == mesh.size(cutting[i - 1])) coordinate[cutting[--i]] = 0;
    if (i == 0) return shares;
  }
}

}  // namespace

bool is_split(const at::Tensor& t, const std::vector<int64_t>& dims) {
  if (!is_dtensor(t) || t.numel() == 0) return false;
  const Spec& spec = *spec_of(t);
  bool split = false;
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    const Placement& p = spec.placements()[m];
    if (p.is_partial()) return false;
    split = split || (cuts(p, dims) && spec.mesh().size(m) > 1);
  }
  return split;
}

int64_t num_columns(const at::Tensor& t, const SummaryRequest& request) {
  const Shares shares = shares_of(*spec_of(t), request);
  return shares.width * static_cast<int64_t>(shares.parts.size());
}

Summaries gather_summaries(const at::Tensor& t, const SummaryRequest& request, const CommCause& cause) {
  const DTensorMeta& meta = meta_of(t);
  const Spec& spec = *meta.spec;
  const Shares shares = shares_of(spec, request);
  const int64_t column_dim = request.dims[0];
  Shape sizes = spec.sizes();
  for (const int64_t d : request.dims) sizes[d] = 1;
  sizes[column_dim] = shares.width * static_cast<int64_t>(shares.parts.size());
  Placements from = spec.placements(), to = spec.placements();
  for (size_t m = 0; m < from.size(); ++m) {
    if (!cuts(from[m], request.dims)) continue;
    from[m] = Shard(column_dim);
    to[m] = Replicate();
  }

  std::vector<RankTensors> locals(request.dtypes.size());
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    LocalGuard guard;
    const auto coordinate = spec.mesh().local_coordinate(static_cast<int64_t>(i));
    const int64_t p = shares.position(spec, request.dims, coordinate);
    std::vector<at::Tensor> own;
    if (shares.counts[p] > 0 && meta.locals[i].numel() > 0) {
      own = request.summarize(meta.locals[i], spec.local_layout(static_cast<int64_t>(i)), shares.width);
    } else {
      Shape empty = spec.local_shape(static_cast<int64_t>(i));
      for (const int64_t d : request.dims) empty[d] = 1;
      empty[column_dim] = shares.width;
      for (const auto dtype : request.dtypes) {
        own.push_back(meta.locals[i].new_zeros(at::IntArrayRef(empty), meta.locals[i].options().dtype(dtype)));
      }
    }
    for (size_t k = 0; k < locals.size(); ++k) locals[k].push_back(own[k].contiguous());
  }
  std::vector<at::Tensor> tensors;
  std::vector<Layout> layouts;
  for (size_t k = 0; k < locals.size(); ++k) {
    tensors.push_back(
        make_dtensor(Spec::get(spec.mesh(), from, at::IntArrayRef(sizes), request.dtypes[k]), std::move(locals[k])));
    layouts.emplace_back(spec.mesh(), to);
  }

  Summaries result;
  result.tensors = redistribute_below_autograd(tensors, layouts, cause);
  std::vector<int64_t> columns;  // without padding
  for (size_t p = 0; p < shares.parts.size(); ++p) {
    for (int64_t c = 0; c < shares.counts[p]; ++c) {
      columns.push_back(static_cast<int64_t>(p) * shares.width + c);
      result.parts.push_back(shares.parts[p]);
    }
  }
  if (static_cast<int64_t>(columns.size()) == sizes[column_dim]) return result;
  at::Tensor index;
  {
    LocalGuard guard;
    index = at::tensor(columns, at::TensorOptions(at::kLong)).to(t.device());
  }
  index = replicate_plain(index, spec.mesh());
  for (at::Tensor& x : result.tensors) x = at::index_select(x, column_dim, index);
  return result;
}

}  // namespace dtensor
