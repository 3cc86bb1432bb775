#include "ops/network/context_layouts.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "ops/network/ring_turn.h"
#include "ops/support/meta_tensor.h"
#include "plan/cost_model.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kByBatch = 0, kByHeads = 1, kByLength = 2;

Placement by_length(const Placement& p) { return p.is_sharded_on(kByLength) ? p : Shard(kByLength); }

// Whether every rank gets the key heads of its query heads, where `ranks` share the heads so far and this mesh dim
// shards them once more.
bool heads_fit(const Placement& p, int64_t heads, int64_t key_heads, int64_t ranks) {
  if (heads == key_heads) return true;
  const int64_t pieces = ranks * (p.is_strided_shard() ? p.split_factor() : 1);
  return heads % pieces == 0 && key_heads % pieces == 0;
}

// Seconds of a collective over the mesh dim of the sequence.
double seconds(const RingCall& call, Collective kind, int64_t bytes) {
  const DeviceMesh& mesh = call.q->mesh();
  const auto model = cost_model(mesh.world());
  const bool crosses = (mesh.dims_between_nodes(model->ranks_per_node) >> call.dim & 1) != 0;
  return model->collective(kind, GroupExtent::of_links(mesh.size(call.dim), crosses), bytes);
}

// Of the products in forward, for a rank with `pairs` of each of `heads` and of its batch.
double work_seconds(const RingCall& call, double pairs, int64_t heads) {
  const Shape part = largest_part(call.q->sizes(), call.q->mesh().shape(), call.q->placements());
  const double features = static_cast<double>(call.q->sizes()[3] + call.v->sizes()[3]);
  return cost_model(call.q->mesh().world())
      ->products(2 * pairs * static_cast<double>(heads * part[kByBatch]) * features, call.q->dtype());
}

// Backward does the products 2.5 times.
constexpr double kWorkOfTraining = 3.5;

double ring_seconds(const RingCall& call, bool differentiable) {
  const auto moves = static_cast<double>(call.num_ranks() - 1);
  const Ring ring({call.k, call.v}, call.dim, call.k->dtype());
  const Ring gradients({call.k, call.v}, call.dim, widened(call.k->dtype()));
  const double move = moves * seconds(call, Collective::kPermute, ring.bytes());
  const double move_back = move + moves * seconds(call, Collective::kPermute, gradients.bytes());
  const Shape part = largest_part(call.q->sizes(), call.q->mesh().shape(), call.q->placements());
  const double work = work_seconds(call, attention_pairs(call).of_rank, part[kByHeads]);
  return differentiable ? move + move_back + kWorkOfTraining * work : move + work;
}

double all_to_all_seconds(const RingCall& call, bool differentiable) {
  const int64_t n = call.num_ranks();
  const auto received = [&](int64_t bytes) { return bytes / n * (n - 1); };
  const int64_t q = call.q->max_local_bytes();
  int64_t keys = call.k->max_local_bytes() + call.v->max_local_bytes();
  if (!keeps_key_heads(call)) keys = keys / call.k->sizes()[kByHeads] * call.q->sizes()[kByHeads];
  const int64_t out = q / std::max<int64_t>(1, call.q->sizes()[3]) * call.v->sizes()[3];
  const double both =
      seconds(call, Collective::kAllToAll, received(q + keys)) + seconds(call, Collective::kAllToAll, received(out));
  const Shape part = largest_part(call.q->sizes(), call.q->mesh().shape(), heads_layout(*call.q, call.dim));
  const double work = work_seconds(call, attention_pairs(call).whole, part[kByHeads]);
  return differentiable ? 2 * both + kWorkOfTraining * work : both + work;
}

}  // namespace

ContextLayouts context_layouts(const Spec& q, const Spec& k, const Spec& v, int64_t dim) {
  const DeviceMesh& mesh = q.mesh();
  ContextLayouts layouts{Placements(mesh.ndim(), Replicate()), {}};
  int64_t ranks_of_heads = 1;
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    if (d == dim) continue;
    for (const Spec* spec : {&q, &k, &v}) {
      const Placement& p = spec->placements()[d];
      const bool by_heads = p.is_sharded_on(kByHeads);
      if (!p.is_sharded_on(kByBatch) && !by_heads) continue;
      if (by_heads && !heads_fit(p, q.sizes()[kByHeads], k.sizes()[kByHeads], ranks_of_heads * mesh.size(d))) continue;
      if (by_heads) ranks_of_heads *= mesh.size(d);
      layouts.q[d] = p;
      break;
    }
  }
  layouts.k = layouts.q;
  layouts.q[dim] = by_length(q.placements()[dim]);
  layouts.k[dim] = by_length(k.placements()[dim]);
  return layouts;
}

Placements mask_layout(const Spec& mask, const Placements& q) {
  Placements placements = q;
  for (Placement& p : placements) {
    if (p.is_sharded() && mask.sizes()[p.dim()] == 1) p = Replicate();
  }
  return placements;
}

int64_t ranks_of_heads(const Spec& q, int64_t dim) {
  int64_t ranks = q.mesh().size(dim);
  for (int64_t d = 0; d < q.mesh().ndim(); ++d) {
    if (d != dim && q.placements()[d].is_sharded_on(kByHeads)) ranks *= q.mesh().size(d);
  }
  return ranks;
}

Placements heads_layout(const Spec& q, int64_t dim) {
  Placements placements = q.placements();
  // Cut last, the heads of a rank stay on the ranks of its row: a later mesh dim cuts first if this one is strided.
  int64_t later = 1;
  for (int64_t d = dim + 1; d < q.mesh().ndim(); ++d) {
    if (placements[d] == Shard(kByHeads)) later *= q.mesh().size(d);
  }
  const bool nests = later > 1 && q.sizes()[kByHeads] % ranks_of_heads(q, dim) == 0;
  placements[dim] = nests ? StridedShard(kByHeads, later) : Shard(kByHeads);
  return placements;
}

bool keeps_key_heads(const RingCall& call) {
  const int64_t heads = call.q->sizes()[kByHeads], key_heads = call.k->sizes()[kByHeads];
  return heads == key_heads || key_heads % ranks_of_heads(*call.q, call.dim) == 0;
}

ContextParallelMethod method_of(ContextParallelMethod option, const RingCall& call, bool differentiable) {
  const int64_t heads = call.q->sizes()[kByHeads], ranks = ranks_of_heads(*call.q, call.dim);
  const bool can_exchange = heads >= ranks;
  TORCH_CHECK_VALUE(
      option != ContextParallelMethod::kAllToAll || can_exchange,
      "[ContextParallel] scaled_dot_product_attention: kAllToAll gives each rank some heads, but `query` ",
      call.q->to_string(), " has ", heads, " heads for ", ranks, " ranks; use kRing");
  if (option != ContextParallelMethod::kCheapest) return option;
  if (!can_exchange) return ContextParallelMethod::kRing;
  return all_to_all_seconds(call, differentiable) < ring_seconds(call, differentiable)
             ? ContextParallelMethod::kAllToAll
             : ContextParallelMethod::kRing;
}

}  // namespace dtensor::internal
