#include "ops/split_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"
#include "ops/moments.h"
#include "ops/rank_shares.h"
#include "plan/plan_many.h"

namespace dtensor {
int64_t SplitRows::size() const {
  int64_t n = 1;
  for (const int64_t d : dims) n *= input.size(d);
  return n;
}

double SplitRows::seconds_to_add(int64_t numbers) const {
  const Spec& spec = *spec_of(input);
  Placements addends = spec.placements();
  for (Placement& p : addends) {
    if (cuts(p, dims)) p = Partial();
  }
  Shape sizes = spec.sizes();
  for (const int64_t d : dims) sizes[d] = 1;
  sizes[dims[0]] = numbers;
  const SpecPtr sums = Spec::get(spec.mesh(), addends, at::IntArrayRef(sizes), dtype);
  return cached_plan(sums, without_partials(addends))->seconds;
}

std::optional<SplitRows> split_rows(const at::Tensor& input, std::vector<int64_t> dims, int64_t weight_dim,
                                    int64_t weight_ndim, const std::vector<at::Tensor>& tensors) {
  if (!input.is_floating_point() || !is_split(input, dims)) return std::nullopt;
  const Spec& spec = *spec_of(input);
  for (const at::Tensor& t : tensors) {
    if (t.defined() && (!is_dtensor(t) || spec_of(t)->mesh() != spec.mesh())) return std::nullopt;
  }
  SplitRows rows;
  rows.input = input;
  rows.dims = std::move(dims);
  rows.dtype = widened(input.scalar_type());
  for (int64_t d = 0; d < input.dim(); ++d) {
    if (!std::binary_search(rows.dims.begin(), rows.dims.end(), d)) rows.others.push_back(d);
  }
  for (const Placement& p : spec.placements()) {
    const bool of_weight = p.is_sharded() && p.dim() >= weight_dim && p.dim() < weight_dim + weight_ndim;
    rows.weights.push_back(!of_weight     ? Replicate()
                           : p.is_shard() ? Shard(p.dim() - weight_dim)
                                          : StridedShard(p.dim() - weight_dim, p.split_factor()));
  }
  return rows;
}

bool pays_to_stay(const SplitRows& rows, double own, const std::vector<at::Tensor>& moving,
                  const std::vector<at::Tensor>& weights) {
  const Placements& present = spec_of(rows.input)->placements();
  const Placements everywhere(present.size(), Replicate());
  const auto seconds = [&](const Placements& to, const Placements& weights_to) {
    std::vector<Redistribution> moves;
    for (const at::Tensor& t : moving) moves.push_back({spec_of(t), to});
    for (const at::Tensor& t : weights) {
      if (t.defined()) moves.push_back({spec_of(t), weights_to});
    }
    return plan_many(moves).seconds;
  };
  // Whole rows on all ranks, or each on some; the result comes back, as nobody asked for it elsewhere.
  double least = std::numeric_limits<double>::infinity();
  for (int64_t d = -1; d < static_cast<int64_t>(rows.others.size()); ++d) {
    Placements to = present;
    for (Placement& p : to) {
      if (cuts(p, rows.dims)) p = d < 0 ? Replicate() : Shard(rows.others[d]);
    }
    const SpecPtr there = spec_of(rows.input)->with_placements(to);
    least = std::min(least, seconds(to, everywhere) + cached_plan(there, present)->seconds);
  }
  return own + seconds(present, rows.weights) < least;
}

at::Tensor brought(const at::Tensor& t, const Placements& to, const c10::OperatorHandle& op, const char* what) {
  if (!t.defined()) return t;
  return redistribute_below_autograd(
      t, to, {c10::toString(op.operator_name()), what, module_of(peek_meta(t)), /*implicit=*/true});
}

at::Tensor reduced(const at::Tensor& t, const c10::OperatorHandle& op, const char* what) {
  return brought(t, without_partials(spec_of(t)->placements()), op, what);
}

c10::ScalarType stats_type(const SplitRows& rows, const std::vector<at::Tensor>& weights) {
  const c10::ScalarType own = rows.input.scalar_type();
  bool mixed = false;
  for (const at::Tensor& w : weights) mixed |= w.defined() && w.scalar_type() != own;
  const bool on_cpu = spec_of(rows.input)->mesh().world().device_type() == c10::DeviceType::CPU;
  return on_cpu && !mixed ? own : rows.dtype;
}

at::Tensor cast_addends(const at::Tensor& t, c10::ScalarType dtype) {
  if (t.scalar_type() == dtype) return t;
  const DTensorMeta& meta = meta_of(t);
  RankTensors locals = meta.locals;
  LocalGuard guard;
  for (at::Tensor& local : locals) local = local.to(dtype);
  return make_result(Spec::get(meta.spec->mesh(), meta.spec->placements(), at::IntArrayRef(meta.spec->sizes()), dtype),
                     std::move(locals));
}

}  // namespace dtensor
