#include "ops/reduction/split_rows.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/reduction/moments.h"
#include "ops/reduction/rank_shares.h"
#include "ops/support/meta_tensor.h"
#include "plan/memo.h"
#include "plan/redistribution_cost.h"

namespace dtensor::internal {
namespace {

// Time to move the other arguments to the layout of the elements, and to gather whole rows, if within the limits.
struct Moves {
  double weights = 0, rows = 0;
};

// By the specs of tensors, dims and limits, and the layout of the weights.
struct KnownMoves : Memo<std::pair<std::vector<int64_t>, Placements>, Moves, 512> {};

Moves price_moves(const SplitRows& rows, const std::vector<SpecPtr>& moving, const std::vector<SpecPtr>& weights,
                  const Limits& limits) {
  const Placements& present = spec_of(rows.input)->placements();
  const Placements everywhere(present.size(), Replicate());
  const auto seconds = [&](const Placements& to, const Placements& weights_to, const SpecPtr& back) {
    std::vector<Redistribution> moves;
    for (const SpecPtr& t : moving) moves.push_back({t, to});
    for (const SpecPtr& t : weights) moves.push_back({t, weights_to});
    return seconds_to_move(moves, limits) + (back ? seconds_to_move({{back, present}}, limits) : 0);
  };
  // Whole rows on all ranks, or each row on one; includes moving the result back, since its consumers expect the
  // input's layout.
  double least = std::numeric_limits<double>::infinity();
  for (int64_t d = -1; d < static_cast<int64_t>(rows.others.size()); ++d) {
    Placements to = present;
    for (Placement& p : to) {
      if (cuts(p, rows.dims)) p = d < 0 ? Replicate() : Shard(rows.others[d]);
    }
    least = std::min(least, seconds(to, everywhere, spec_of(rows.input)->with_placements(to)));
  }
  return {seconds(present, rows.weights, nullptr), least};
}

}  // namespace

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
  return seconds_to_move({{sums, without_partials(addends)}}, current_dispatch_scope().hints.limits);
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
  const Limits& limits = current_dispatch_scope().hints.limits;
  std::vector<SpecPtr> all = {spec_of(rows.input)};
  const auto specs = [&](const std::vector<at::Tensor>& tensors) {
    std::vector<SpecPtr> result;
    for (const at::Tensor& t : tensors) {
      if (t.defined()) result.push_back(spec_of(t));
    }
    all.insert(all.end(), result.begin(), result.end());
    return result;
  };
  const auto of_moving = specs(moving), of_weights = specs(weights);
  std::vector<int64_t> numbers{limits.max_bytes, static_cast<int64_t>(of_moving.size()),
                               static_cast<int64_t>(rows.dims.size())};
  numbers.insert(numbers.end(), rows.dims.begin(), rows.dims.end());
  for (const SpecPtr& spec : all) numbers.push_back(static_cast<int64_t>(spec->id()));
  for (const int64_t d : rows.others) numbers.push_back(-1 - d);
  std::pair key(std::move(numbers), rows.weights);
  auto& memo = all[0]->mesh().world().attachment<KnownMoves>();
  auto moves = memo.find(key);
  if (!moves) {
    moves = price_moves(rows, of_moving, of_weights, limits);
    memo.insert(std::move(key), *moves, std::move(all));
  }
  return own + moves->weights < moves->rows;
}

at::Tensor brought(const at::Tensor& t, const Placements& to, const c10::OperatorHandle& op, const char* what,
                   c10::ArrayRef<at::Tensor> parameters) {
  if (!t.defined()) return t;
  std::vector<at::Tensor> inputs{t};
  inputs.insert(inputs.end(), parameters.begin(), parameters.end());
  return redistribute_below_autograd(t, to, call_cause(op, what, inputs));
}

at::Tensor reduced(const at::Tensor& t, const c10::OperatorHandle& op, const char* what,
                   c10::ArrayRef<at::Tensor> parameters) {
  return spec_of(t)->has_partial() ? brought(t, without_partials(spec_of(t)->placements()), op, what, parameters) : t;
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
  const DTensorMeta& meta = meta_for_read(t);
  RankTensors locals = meta.locals;
  LocalGuard guard;
  for (at::Tensor& local : locals) local = local.to(dtype);
  return make_result(Spec::get(meta.spec->mesh(), meta.spec->placements(), at::IntArrayRef(meta.spec->sizes()), dtype),
                     std::move(locals));
}

}  // namespace dtensor::internal
