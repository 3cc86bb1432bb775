#include "ops/network/blockwise_attention.h"

#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The fused kernel of the CPU computes no scores in memory.
bool has_fused_kernel(const at::Tensor& queries, const at::Tensor& values, const AttentionMath& math) {
  return queries.is_cpu() && !math.mask.defined() && queries.size(3) == values.size(3) && queries.size(3) > 0;
}

at::Tensor rows_of(const at::Tensor& t, const AttentionTile& tile) { return t.narrow(2, tile.q_begin, tile.q_size); }
at::Tensor keys_of(const at::Tensor& t, const AttentionTile& tile) { return t.narrow(2, tile.k_begin, tile.k_size); }
// Shared by the query heads.
at::Tensor keys_of(const at::Tensor& t, const AttentionTile& tile, const at::Tensor& queries) {
  return keys_of(t, tile).expand({-1, queries.size(1), -1, -1});
}

// The part of the mask for a tile: [batch * key heads, query heads per key head, queries, keys].
at::Tensor mask_of(const at::Tensor& mask, const AttentionTile& tile, const at::Tensor& queries) {
  at::Tensor part = mask.size(2) == 1 ? mask : rows_of(mask, tile);
  part = part.size(3) == 1 ? part : part.narrow(3, tile.k_index, tile.k_size);
  if (mask.size(0) == 1 && mask.size(1) == 1) return part;
  return part.expand({-1, -1, tile.q_size, tile.k_size})
      .reshape({queries.size(0), queries.size(1), tile.q_size, tile.k_size});
}

// [..., queries, keys], -inf where a query does not see a key.
at::Tensor scores_of(const at::Tensor& queries, const at::Tensor& keys, const AttentionTile& tile,
                     const AttentionMath& math) {
  const auto dtype = widened(queries.scalar_type());
  const at::Tensor q = rows_of(queries, tile).to(dtype).mul(math.scale);
  const at::Tensor k = keys_of(keys, tile).to(dtype);
  // The query heads of a key head are more rows of one product.
  const at::Tensor rows = q.reshape({q.size(0), q.size(1) * q.size(2), q.size(3)});
  at::Tensor scores = rows.bmm(k.squeeze(1).transpose(1, 2)).view({q.size(0), q.size(1), q.size(2), k.size(2)});
  if (math.mask.defined()) {
    const at::Tensor mask = mask_of(math.mask, tile, queries);
    if (mask.scalar_type() == at::kBool) {
      scores.masked_fill_(mask.logical_not(), -kInfinity);
    } else {
      scores.add_(mask.to(dtype));
    }
  }
  if (tile.causal) {
    const auto options = at::TensorOptions(at::kBool).device(scores.device());
    scores.masked_fill_(at::ones({tile.q_size, tile.k_size}, options).triu(1), -kInfinity);
  }
  return scores;
}

// exp(x - max_score); 0 where a query sees no key.
at::Tensor exp_below(const at::Tensor& x, const at::Tensor& max_score) {
  return x.sub(max_score.masked_fill(max_score.eq(-kInfinity), 0)).exp_();
}

// Divides by sums of exponentials, of which those of no keys are 0.
at::Tensor divided(const at::Tensor& x, const at::Tensor& sum) { return x.div(sum.masked_fill(sum.eq(0), 1)); }

// Products of [..., rows, m] and [N, 1, m, n].
at::Tensor times_block(const at::Tensor& a, const at::Tensor& block) {
  const at::Tensor rows = a.reshape({a.size(0), a.size(1) * a.size(2), a.size(3)});
  return rows.bmm(block.squeeze(1)).view({a.size(0), a.size(1), a.size(2), block.size(3)});
}
// Of [..., rows, m] transposed and [..., rows, n], summed over the query heads: [N, 1, m, n].
at::Tensor transposed_times(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor left = a.reshape({a.size(0), a.size(1) * a.size(2), a.size(3)});
  const at::Tensor right = b.reshape({b.size(0), b.size(1) * b.size(2), b.size(3)});
  return left.transpose(1, 2).bmm(right).unsqueeze(1);
}

AttentionState attend_tile(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                           const AttentionTile& tile, const AttentionMath& math) {
  if (has_fused_kernel(queries, values, math)) {
    const auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        rows_of(queries, tile), keys_of(keys, tile, queries), keys_of(values, tile, queries), /*dropout_p=*/0.,
        tile.causal, /*attn_mask=*/{}, math.scale);
    return {out.to(widened(out.scalar_type())), logsumexp, at::ones_like(logsumexp)};
  }
  const at::Tensor scores = scores_of(queries, keys, tile, math);
  const at::Tensor max_score = scores.amax({-1}, /*keepdim=*/true), weights = exp_below(scores, max_score);
  const at::Tensor sum = weights.sum({-1}, /*keepdim=*/true);
  return {times_block(divided(weights, sum), keys_of(values, tile).to(scores.scalar_type())), max_score.squeeze(-1),
          sum.squeeze(-1)};
}

AttentionGradients gradients_of_tile(const at::Tensor& grad, const AttentionState& whole, const at::Tensor& queries,
                                     const at::Tensor& keys, const at::Tensor& values, const AttentionTile& tile,
                                     const AttentionMath& math) {
  if (has_fused_kernel(queries, values, math)) {
    auto [q, k, v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        rows_of(grad, tile), rows_of(queries, tile), keys_of(keys, tile, queries), keys_of(values, tile, queries),
        rows_of(whole.out, tile).to(queries.scalar_type()),
        rows_of(whole.sum, tile).log().add_(rows_of(whole.max_score, tile)), /*dropout_p=*/0., tile.causal,
        /*attn_mask=*/{}, math.scale);
    const auto dtype = widened(queries.scalar_type());
    return {q.to(dtype), k.sum({1}, /*keepdim=*/true, dtype), v.sum({1}, /*keepdim=*/true, dtype)};
  }
  const at::Tensor scores = scores_of(queries, keys, tile, math);
  const auto dtype = scores.scalar_type();
  const at::Tensor p =
      divided(exp_below(scores, rows_of(whole.max_score, tile).unsqueeze(-1)), rows_of(whole.sum, tile).unsqueeze(-1));
  const at::Tensor g = rows_of(grad, tile).to(dtype);
  const at::Tensor expected = g.mul(rows_of(whole.out, tile)).sum({-1}, /*keepdim=*/true);
  const at::Tensor grad_scores =
      times_block(g, keys_of(values, tile).to(dtype).transpose(2, 3)).sub_(expected).mul_(p).mul_(math.scale);
  return {times_block(grad_scores, keys_of(keys, tile).to(dtype)),
          transposed_times(grad_scores, rows_of(queries, tile).to(dtype)), transposed_times(p, g)};
}

// Adds the result for a tile's keys: both count by their share of the sum of exponentials.
void combine(AttentionState& state, const AttentionState& addend, const AttentionTile& tile) {
  const at::Tensor out = rows_of(state.out, tile), old_max = rows_of(state.max_score, tile);
  const at::Tensor max_score = at::maximum(old_max, addend.max_score);
  const at::Tensor before = rows_of(state.sum, tile).mul(exp_below(old_max, max_score));
  const at::Tensor added = addend.sum.mul(exp_below(addend.max_score, max_score)), sum = before.add(added);
  out.mul_(divided(before, sum).unsqueeze(-1)).add_(addend.out.mul(divided(added, sum).unsqueeze(-1)));
  old_max.copy_(max_score);
  rows_of(state.sum, tile).copy_(sum);
}

}  // namespace

at::Tensor by_key_head(const at::Tensor& t, int64_t key_heads) {
  const int64_t served = key_heads == 0 ? 1 : t.size(1) / key_heads;
  return t.reshape({t.size(0) * key_heads, served, t.size(2), t.size(3)}).contiguous();
}

AttentionState no_attention(const at::Tensor& queries, int64_t out_features) {
  const auto options = queries.options().dtype(widened(queries.scalar_type()));
  const auto rows = queries.sizes().slice(0, 3);
  return {at::zeros({queries.size(0), queries.size(1), queries.size(2), out_features}, options),
          at::full(rows, -kInfinity, options), at::zeros(rows, options)};
}

int64_t max_tile_rows(const at::Tensor& queries, const at::Tensor& values, const AttentionMath& math) {
  if (has_fused_kernel(queries, values, math)) return std::max<int64_t>(1, queries.size(2));
  constexpr int64_t kMaxScores = int64_t{1} << 24;
  const int64_t of_row = std::max<int64_t>(1, queries.size(0) * queries.size(1) * values.size(2));
  return std::max<int64_t>(1, kMaxScores / of_row);
}

void attend(AttentionState& state, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
            c10::ArrayRef<AttentionTile> tiles, const AttentionMath& math) {
  for (const AttentionTile& tile : tiles) {
    if (tile.q_size == 0 || tile.k_size == 0 || queries.size(0) == 0) continue;
    combine(state, attend_tile(queries, keys, values, tile, math), tile);
  }
}

void attend_backward(AttentionGradients& sums, const at::Tensor& grad, const AttentionState& whole,
                     const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     c10::ArrayRef<AttentionTile> tiles, const AttentionMath& math) {
  for (const AttentionTile& tile : tiles) {
    if (tile.q_size == 0 || tile.k_size == 0 || queries.size(0) == 0) continue;
    const AttentionGradients of_tile = gradients_of_tile(grad, whole, queries, keys, values, tile, math);
    rows_of(sums.queries, tile).add_(of_tile.queries);
    keys_of(sums.keys, tile).add_(of_tile.keys);
    keys_of(sums.values, tile).add_(of_tile.values);
  }
}

}  // namespace dtensor::internal
