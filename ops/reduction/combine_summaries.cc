#include "ops/reduction/combine_summaries.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/rank_shares.h"
#include "plan/cost_policy.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"

namespace dtensor::internal {
namespace {

// Summaries as separate tensors [others, shares, 1, rows], independent of the layout of the summarized tensor: along
// mesh dims that cut other dims, every rank has one index of `others`, padded to the largest number of rows on a rank.
struct Rows {
  int64_t others = 1, shares = 1, each = 1, all = 1;  // rows: of each group, in total
  Placements by_share, dealt, whole;  // sharded by share; sharded by rows; replicated on these mesh dims
  SpecPtr spec(const DeviceMesh& mesh, const Placements& placements, int64_t columns, c10::ScalarType dtype) const {
    return Spec::get(mesh, placements, {others, columns, 1, all}, dtype);
  }
};

Rows rows_of(const Spec& spec, const SummaryRequest& request) {
  Rows rows;
  const DeviceMesh& mesh = spec.mesh();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const Placement& p = spec.placements()[m];
    const bool cut = cuts(p, request.dims), other = p.is_sharded() && !cut;
    if (cut) rows.shares *= mesh.size(m);
    if (other) rows.others *= mesh.size(m);
    rows.by_share.push_back(cut ? Shard(1) : other ? Shard(0) : Replicate());
    rows.dealt.push_back(cut ? Shard(3) : rows.by_share.back());
    rows.whole.push_back(cut ? Replicate() : rows.by_share.back());
  }
  const std::vector<int64_t> first(static_cast<size_t>(mesh.ndim()), 0);  // the rank that holds most
  const Shape most = local_shape(spec.sizes(), mesh.shape(), spec.placements(), first);
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    if (!std::binary_search(request.dims.begin(), request.dims.end(), d)) rows.each *= most[d];
  }
  rows.all = rows.each * request.groups;
  return rows;
}

struct Way {
  bool dealt = false;
  double seconds = 0;
};

// By the specs of the summaries, which determine all but the results' dtypes; the dtypes; and limits.
struct Ways : Memo<std::vector<int64_t>, Way, 512> {};

Way cheaper_way(const DeviceMesh& mesh, const Rows& rows, const SummaryRequest& request,
                const Combination& combination) {
  const auto specs = [&](const std::vector<c10::ScalarType>& dtypes, int64_t columns, const Placements& placements) {
    std::vector<SpecPtr> all;
    for (const auto dtype : dtypes) all.push_back(rows.spec(mesh, placements, columns, dtype));
    return all;
  };
  const Limits& limits = current_dispatch_scope().hints.limits;
  const auto seconds = [&](const std::vector<SpecPtr>& all, const Placements& to) {
    std::vector<Redistribution> moves;
    for (const SpecPtr& spec : all) moves.push_back({spec, to});
    return seconds_to_move(moves, limits);
  };
  const auto by_share = specs(request.dtypes, rows.shares, rows.by_share);
  std::vector<int64_t> key{limits.max_bytes};
  for (const SpecPtr& spec : by_share) key.push_back(static_cast<int64_t>(spec->id()));
  for (const auto dtype : combination.dtypes) key.push_back(-1 - static_cast<int64_t>(dtype));
  auto& ways = mesh.world().attachment<Ways>();
  if (const auto found = ways.find(key)) return *found;
  const double gathered = seconds(by_share, rows.whole);
  const double dealt = seconds(by_share, rows.dealt) + seconds(specs(combination.dtypes, 1, rows.dealt), rows.whole);
  // Each rank receives far fewer bytes where rows are dealt out.
  const Way way = dealt < kFewerBytes * gathered ? Way{true, dealt} : Way{false, gathered};
  ways.insert(std::move(key), way, by_share);
  return way;
}

std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors, const Placements& to, const CommCause& cause) {
  const std::vector<Layout> layouts(tensors.size(), Layout(spec_of(tensors[0])->mesh(), to));
  return redistribute_below_autograd(tensors, layouts, cause);
}

// The summaries of all local ranks.
std::vector<at::Tensor> padded_summaries(const DTensorMeta& meta, const Rows& rows, const Shares& shares,
                                         const SummaryRequest& request) {
  std::vector<RankTensors> locals(request.dtypes.size());
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    const std::vector<at::Tensor> own = rank_summaries(meta, i, shares, request);
    LocalGuard guard;
    for (size_t k = 0; k < locals.size(); ++k) {
      const int64_t n = own[k].numel() / request.groups;
      at::Tensor t = own[k].movedim(request.dims[0], 0).reshape({request.groups, n});
      if (n < rows.each) t = at::constant_pad_nd(t, {0, rows.each - n});
      locals[k].push_back(t.reshape({1, 1, 1, rows.all}));
    }
  }
  std::vector<at::Tensor> tensors;
  for (size_t k = 0; k < locals.size(); ++k) {
    const SpecPtr spec = rows.spec(meta.spec->mesh(), rows.by_share, rows.shares, request.dtypes[k]);
    tensors.push_back(make_dtensor(spec, std::move(locals[k])));
  }
  return tensors;
}

// Combines the rows of which each rank has all summaries.
std::vector<at::Tensor> combined_rows(const std::vector<at::Tensor>& summaries, const Rows& rows, const Shares& shares,
                                      const Combination& combination) {
  const Spec& spec = *spec_of(summaries[0]);
  std::vector<int64_t> columns;  // of ranks with elements
  std::vector<LocalLayout> parts;
  for (size_t p = 0; p < shares.parts.size(); ++p) {
    if (shares.counts[p] == 0) continue;
    columns.push_back(static_cast<int64_t>(p));
    parts.push_back(shares.parts[p]);
  }
  std::vector<RankTensors> locals(combination.dtypes.size());
  for (size_t i = 0; i < meta_for_read(summaries[0]).locals.size(); ++i) {
    LocalGuard guard;
    const LocalLayout part = spec.local_layout(static_cast<int64_t>(i));
    const int64_t n = total_size(part.dims[3]);
    std::vector<at::Tensor> summary;
    for (const at::Tensor& t : summaries) {
      summary.push_back(meta_for_read(t).locals[i].reshape({rows.shares, n}));
      if (columns.size() < shares.parts.size()) {
        const at::Tensor index = at::tensor(columns, at::TensorOptions(at::kLong)).to(t.device());
        summary.back() = summary.back().index_select(0, index);
      }
    }
    at::Tensor group;
    if (rows.all > rows.each) {
      group = at::arange(part.offsets[3], part.offsets[3] + n, summary[0].options().dtype(at::kLong))
                  .floor_divide(rows.each);
    }
    std::vector<at::Tensor> results;
    if (n > 0) results = combination.combine(summary, parts, group);
    for (size_t k = 0; k < locals.size(); ++k) {
      const at::Tensor result = n > 0 ? results[k].to(combination.dtypes[k])
                                      : summary[0].new_empty({0}, summary[0].options().dtype(combination.dtypes[k]));
      locals[k].push_back(result.reshape({1, 1, 1, n}));
    }
  }
  std::vector<at::Tensor> tensors;
  for (size_t k = 0; k < locals.size(); ++k) {
    tensors.push_back(
        make_dtensor(rows.spec(spec.mesh(), spec.placements(), 1, combination.dtypes[k]), std::move(locals[k])));
  }
  return tensors;
}

// Converts rows of results to a tensor distributed like the summarized one.
at::Tensor unrolled(const at::Tensor& combined, const Spec& spec, const Rows& rows, const SummaryRequest& request,
                    bool keepdim) {
  std::vector<int64_t> place(static_cast<size_t>(spec.ndim()), 0);  // position of each dim, -1 where it is removed
  int64_t ndim = 0;
  Shape sizes;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    const bool reduced = std::binary_search(request.dims.begin(), request.dims.end(), d);
    place[d] = reduced && !keepdim ? -1 : ndim++;
    if (place[d] >= 0) sizes.push_back(!reduced ? spec.sizes()[d] : d == request.dims[0] ? request.groups : 1);
  }
  Placements placements = spec.placements();
  for (Placement& p : placements) {
    if (!p.is_sharded()) continue;
    const int64_t d = place[p.dim()];
    p = cuts(p, request.dims) ? Replicate() : p.is_shard() ? Shard(d) : StridedShard(d, p.split_factor());
  }
  const SpecPtr result = Spec::get(spec.mesh(), placements, at::IntArrayRef(sizes), combined.scalar_type());
  RankTensors locals;
  const RankTensors& from = meta_for_read(combined).locals;
  for (size_t i = 0; i < from.size(); ++i) {
    LocalGuard guard;
    Shape shape = result->local_shape(static_cast<int64_t>(i));
    at::Tensor t = from[i].reshape({request.groups, rows.each});
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    t = t.narrow(1, 0, n / request.groups);
    if (request.groups > 1) {  // moves the groups from the front to their dim
      shape.erase(shape.begin() + request.dims[0]);
      shape.insert(shape.begin(), request.groups);
      t = t.reshape(at::IntArrayRef(shape)).movedim(0, request.dims[0]);
    }
    locals.push_back(t.reshape(at::IntArrayRef(result->local_shape(static_cast<int64_t>(i)))).contiguous());
  }
  return make_result(result, std::move(locals));
}

}  // namespace

std::vector<at::Tensor> combine_summaries(const at::Tensor& t, const SummaryRequest& request,
                                          const Combination& combination, const CommCause& cause) {
  const DTensorMeta& meta = meta_for_read(t);
  const Shares shares = shares_of(*meta.spec, request);
  const Rows rows = rows_of(*meta.spec, request);
  const bool dealt = cheaper_way(meta.spec->mesh(), rows, request, combination).dealt;
  const auto all = moved(padded_summaries(meta, rows, shares, request), dealt ? rows.dealt : rows.whole, cause);
  std::vector<at::Tensor> results = combined_rows(all, rows, shares, combination);
  if (dealt) results = moved(results, rows.whole, cause);
  for (at::Tensor& r : results) r = unrolled(r, *meta.spec, rows, request, combination.keepdim);
  return results;
}

double seconds_to_combine(const Spec& spec, const SummaryRequest& request, const Combination& combination) {
  return cheaper_way(spec.mesh(), rows_of(spec, request), request, combination).seconds;
}

}  // namespace dtensor::internal
