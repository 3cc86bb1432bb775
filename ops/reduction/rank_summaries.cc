#include "ops/reduction/rank_summaries.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_shares.h"

namespace dtensor::internal {

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

bool are_fewer_bytes(const at::Tensor& t, const SummaryRequest& request) {
  int64_t elements = 1, column = 0;
  for (const int64_t d : request.dims) elements *= t.size(d);
  for (const auto dtype : request.dtypes) column += static_cast<int64_t>(c10::elementSize(dtype));
  return num_columns(t, request) * column < elements * static_cast<int64_t>(t.element_size());
}

Summaries gather_summaries(const at::Tensor& t, const SummaryRequest& request, const CommCause& cause) {
  const DTensorMeta& meta = meta_for_read(t);
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
    std::vector<at::Tensor> own = rank_summaries(meta, i, shares, request);
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

}  // namespace dtensor::internal
