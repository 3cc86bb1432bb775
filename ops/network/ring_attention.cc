#include "ops/network/ring_attention.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/head_tail.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"
#include "ops/network/ring_turn.h"
#include "ops/support/meta_tensor.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

constexpr int64_t kSequenceDim = 2;

CommCause ring_cause(const RingCall& call, const char* what) {
  return {"ring attention", what, call.module_path, /*implicit=*/false};
}

// The positions that the parts of a sequence have. Mesh dims other than call.dim do not shard it.
class Positions {
 public:
  Positions(const RingCall& call, SpecPtr spec) : spec_(std::move(spec)), dim_(call.dim) {
    if (call.head_tail) order_ = head_tail_runs(spec_->sizes()[kSequenceDim], call.num_ranks());
  }
  std::vector<PartRun> at(int64_t position) const {
    const int64_t length = spec_->sizes()[kSequenceDim];
    if (length == 0) return {};
    return part_runs(shard_runs({IndexRange{0, length}}, spec_->placements()[dim_], spec_->mesh().size(dim_), position),
                     order_);
  }

 private:
  SpecPtr spec_;
  int64_t dim_;
  std::vector<IndexRange> order_;
};

// The owned ranks' sides of one call.
class RingRanks {
 public:
  RingRanks(const RingCall& call, const at::Tensor& q, const at::Tensor& mask)
      : call_(call), positions_of_q_(call, call.q), positions_of_k_(call, call.k) {
    for (const at::Tensor& t : meta_for_read(q).locals) {
      const auto i = static_cast<int64_t>(queries.size());
      key_heads_.push_back(call.k->local_shape(i)[1]);
      queries.push_back(by_key_head(t, key_heads_.back()));
      math.push_back({call.scale, {}});
      if (!mask.defined()) continue;
      const at::Tensor& local = meta_for_read(mask).locals[i];
      const bool is_shared = local.size(0) == 1 && local.size(1) == 1;
      math.back().mask = is_shared ? local : local.expand({t.size(0), t.size(1), -1, -1});
    }
  }
  size_t size() const { return queries.size(); }

  // [batch, heads, ...] of the i-th local rank, one for each of its key heads.
  at::Tensor grouped(size_t i, const at::Tensor& t) const { return by_key_head(t, key_heads_[i]); }

  // Of the queries of the i-th local rank, and the block that it has after `steps` moves.
  std::vector<AttentionTile> tiles(size_t i, int64_t steps, const at::Tensor& values) const {
    const DeviceMesh& mesh = call_.q->mesh();
    const auto local = static_cast<int64_t>(i);
    return attention_tiles(positions_of_q_.at(mesh.local_coordinate(local)[call_.dim]),
                           positions_of_k_.at(position_after(mesh, call_.dim, local, steps)), call_.causal,
                           max_tile_rows(queries[i], values, math[i]));
  }

  RankTensors queries;
  std::vector<AttentionMath> math;

 private:
  const RingCall& call_;
  const Positions positions_of_q_, positions_of_k_;
  std::vector<int64_t> key_heads_;
};

RankPieces blocks_of(const at::Tensor& k, const at::Tensor& v) {
  const RankTensors &keys = meta_for_read(k).locals, &values = meta_for_read(v).locals;
  RankPieces blocks;
  for (size_t i = 0; i < keys.size(); ++i) blocks.push_back({keys[i].contiguous(), values[i].contiguous()});
  return blocks;
}

// A tensor of `spec`, of parts in any form.
at::Tensor wrapped_parts(const SpecPtr& spec, const RankTensors& parts) {
  RankTensors locals;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Shape sizes = spec->local_shape(static_cast<int64_t>(i));
    const at::IntArrayRef shape(sizes.data(), sizes.size());
    const at::Tensor part = parts[i].reshape(shape);
    const auto strides = local_strides(shape, {spec->strides().data(), spec->strides().size()});
    const bool fits = part.scalar_type() == spec->dtype() && part.strides() == strides;
    locals.push_back(fits ? part : at::empty_strided(shape, strides, part.options().dtype(spec->dtype())).copy_(part));
  }
  return make_result(spec, std::move(locals));
}

// Laid out as `spec`, with the dims in the same order in memory, as ATen's kernels leave them.
SpecPtr spec_of_result(const Spec& spec, Shape sizes, c10::ScalarType dtype) {
  TensorMeta meta{sizes, row_major_strides({sizes.data(), sizes.size()}), dtype};
  if (sizes.size() == spec.sizes().size()) {
    const auto strides = dense_in_order_of({spec.strides().data(), spec.strides().size()}, sizes);
    meta.strides = Shape(strides.begin(), strides.end());
  }
  return Spec::get(spec.mesh(), spec.placements(), meta);
}

// Products of queries and keys, and of weights and values; backward has the first once more, and of each two.
void report_work(const RingCall& call, bool backward) {
  if (!has_listeners()) return;
  const Shape &q = call.q->sizes(), &v = call.v->sizes();
  const double per_pair = 2.0 * static_cast<double>(backward ? 3 * q[3] + 2 * v[3] : q[3] + v[3]);
  const Shape part = largest_part(q, call.q->mesh().shape(), call.q->placements());
  const AttentionPairs pairs = attention_pairs(call);
  report_flops("ring attention", call.module_path, *call.q,
               per_pair * pairs.of_rank * static_cast<double>(part[0] * part[1]),
               per_pair * pairs.whole * static_cast<double>(q[0] * q[1]));
}

// Reading a tensor may communicate, which works on distributed tensors only.
void bring_up_to_date(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) {
    if (t.defined()) meta_for_read(t);
  }
}

// Gradients of a block of keys and values, in the form in which they travel, and as tensors of attend_backward().
Pieces zeros_like_block(const Pieces& block) {
  Pieces result;
  for (const at::Tensor& t : block) result.push_back(at::zeros(t.sizes(), t.options().dtype(widened(t.scalar_type()))));
  return result;
}

at::Tensor one_per_head(const at::Tensor& t) { return t.view({t.size(0) * t.size(1), 1, t.size(2), t.size(3)}); }

void add_parts(const RankPieces& sums, const RankPieces& addends) {
  for (size_t i = 0; i < addends.size(); ++i) {
    for (size_t k = 0; k < addends[i].size(); ++k) sums[i][k].add_(addends[i][k]);
  }
}

RankTensors parts_at(const RankPieces& pieces, size_t k) {
  RankTensors result;
  for (const auto& of_rank : pieces) result.push_back(of_rank[k]);
  return result;
}

}  // namespace

AttentionPairs attention_pairs(const RingCall& call) {
  const int64_t keys = call.k->sizes()[kSequenceDim], queries = call.q->sizes()[kSequenceDim];
  // Keys that the queries at the first `n` positions see.
  const auto seen = [&](int64_t n) {
    const auto below = static_cast<double>(std::min(n, keys)), above = static_cast<double>(n) - below;
    return call.causal ? below * (below + 1) / 2 + above * static_cast<double>(keys)
                       : static_cast<double>(n) * static_cast<double>(keys);
  };
  const Positions positions(call, call.q);
  AttentionPairs pairs{0, seen(queries)};
  for (int64_t p = 0; p < call.num_ranks(); ++p) {
    double of_rank = 0;
    for (const PartRun& run : positions.at(p)) of_rank += seen(run.position + run.size) - seen(run.position);
    pairs.of_rank = std::max(pairs.of_rank, of_rank);
  }
  return pairs;
}

RingResult ring_attention(const RingCall& call, const RingInputs& in) {
  bring_up_to_date({in.q, in.k, in.v, in.mask});
  const LocalGuard guard;
  const RingRanks ranks(call, in.q, in.mask);
  const Ring ring({call.k, call.v}, call.dim, call.k->dtype());
  std::vector<AttentionState> states;
  for (const at::Tensor& queries : ranks.queries) states.push_back(no_attention(queries, call.v->sizes()[3]));
  RankPieces blocks = blocks_of(in.k, in.v);
  for (int64_t step = 0; step < call.num_ranks(); ++step) {
    Ring::Move next;
    const bool is_last = step + 1 == call.num_ranks();
    if (!is_last) next = ring.begin_move(blocks, step, ring_cause(call, "key, value"));
    for (size_t i = 0; i < ranks.size(); ++i) {
      const at::Tensor keys = one_per_head(blocks[i][0]), values = one_per_head(blocks[i][1]);
      attend(states[i], ranks.queries[i], keys, values, ranks.tiles(i, step, values), ranks.math[i]);
    }
    next.wait();
    if (!is_last) blocks = std::move(next.parts);
  }
  call.q->mesh().world().memory().touch(2 * ring.bytes());
  report_work(call, /*backward=*/false);
  RankTensors out, max_score, sum;
  for (const AttentionState& state : states) {
    out.push_back(state.out);
    max_score.push_back(state.max_score);
    sum.push_back(state.sum);
  }
  Shape sizes = call.q->sizes();
  sizes[3] = call.v->sizes()[3];
  const SpecPtr of_rows = spec_of_result(*call.q, Shape(sizes.begin(), sizes.begin() + 3), widened(call.q->dtype()));
  return {wrapped_parts(spec_of_result(*call.q, sizes, call.q->dtype()), out), wrapped_parts(of_rows, max_score),
          wrapped_parts(of_rows, sum)};
}

RingGradients ring_attention_backward(const RingCall& call, const at::Tensor& grad, const RingInputs& in,
                                      const RingResult& result, bool of_keys) {
  bring_up_to_date({grad, in.q, in.k, in.v, in.mask, result.out, result.max_score, result.sum});
  const LocalGuard guard;
  const RingRanks ranks(call, in.q, in.mask);
  const Ring ring({call.k, call.v}, call.dim, call.k->dtype());
  const Ring gradient_ring({call.k, call.v}, call.dim, widened(call.k->dtype()));
  RankTensors grads, of_queries;
  std::vector<AttentionState> whole;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const at::Tensor& queries = ranks.queries[i];
    grads.push_back(ranks.grouped(i, meta_for_read(grad).locals[i]));
    const auto of_rows = [&](const at::Tensor& t) {
      return meta_for_read(t).locals[i].reshape(queries.sizes().slice(0, 3));
    };
    whole.push_back(
        {ranks.grouped(i, meta_for_read(result.out).locals[i]), of_rows(result.max_score), of_rows(result.sum)});
    of_queries.push_back(at::zeros(queries.sizes(), queries.options().dtype(widened(queries.scalar_type()))));
  }
  RankPieces blocks = blocks_of(in.k, in.v), own_gradients;
  Ring::Move arriving;  // gradients of the block that this rank has now, from the ranks that had it before
  for (int64_t step = 0; step < call.num_ranks(); ++step) {
    Ring::Move next;
    const bool is_last = step + 1 == call.num_ranks();
    if (!is_last) next = ring.begin_move(blocks, step, ring_cause(call, "key, value"));
    RankPieces gradients;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const at::Tensor keys = one_per_head(blocks[i][0]), values = one_per_head(blocks[i][1]);
      gradients.push_back(zeros_like_block(blocks[i]));
      AttentionGradients sums{of_queries[i], one_per_head(gradients[i][0]), one_per_head(gradients[i][1])};
      attend_backward(sums, grads[i], whole[i], ranks.queries[i], keys, values, ranks.tiles(i, step, values),
                      ranks.math[i]);
    }
    if (step == 0) {
      own_gradients = std::move(gradients);  // stay
    } else if (of_keys) {
      arriving.wait();
      add_parts(gradients, arriving.parts);
      arriving = gradient_ring.begin_move(gradients, step, ring_cause(call, "gradients of key, value"));
    }
    next.wait();
    if (!is_last) blocks = std::move(next.parts);
  }
  report_work(call, /*backward=*/true);
  call.q->mesh().world().memory().touch(2 * ring.bytes() + (of_keys ? 4 : 1) * gradient_ring.bytes());
  const auto like = [](const SpecPtr& spec, const RankTensors& parts) {
    return wrapped_parts(spec_of_result(*spec, spec->sizes(), spec->dtype()), parts);
  };
  if (!of_keys) return {like(call.q, of_queries), {}, {}};
  arriving.wait();
  add_parts(own_gradients, arriving.parts);
  return {like(call.q, of_queries), like(call.k, parts_at(own_gradients, 0)), like(call.v, parts_at(own_gradients, 1))};
}

}  // namespace dtensor::internal
