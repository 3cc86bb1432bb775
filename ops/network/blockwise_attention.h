// Attention of one rank's queries to a block of keys and values at a time, on plain tensors, below autograd.
//
// With m the largest score of a query and s the sum of exp(score - m), attention is the sum over keys of
// exp(score - m) / s times the value. So results for blocks of keys with the m and s of each combine to that of all
// keys, and with those of all keys every block gives its own share of the gradients. m + log s is not enough: beside a
// mask of -1e9, single precision drops the logarithm. Scores exist for one tile at a time.
//
// Source: Dao et al., FlashAttention, 2022.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

#include "ops/network/attention_tiles.h"

namespace dtensor::internal {

// Tensors of one rank, each key head with the query heads that it serves:
//   queries, results: [batch * key heads, query heads per key head, length, features]
//   keys, values: [batch * key heads, 1, length, features]
// Partial results are of at least single precision.

// [batch, heads, length, features] in that form. `key_heads`: of this rank.
at::Tensor by_key_head(const at::Tensor& t, int64_t key_heads);

struct AttentionState {
  at::Tensor out;  // of the keys so far
  // [batch * key heads, query heads per key head, length]. Their logsumexp is max_score + log(sum).
  at::Tensor max_score;  // -inf: no keys so far
  at::Tensor sum;        // of exp(score - max_score); 0: no keys so far
};

// Of no keys. `out_features`: of the values.
AttentionState no_attention(const at::Tensor& queries, int64_t out_features);

struct AttentionMath {
  double scale = 1;
  // Boolean, or added to the scores: [batch, heads, length of the part, whole length of keys], of which batch and heads
  // may both be 1, and each length, too. Undefined: none.
  at::Tensor mask;
};

// Queries of a tile, at most, so that scores take little memory.
int64_t max_tile_rows(const at::Tensor& queries, const at::Tensor& values, const AttentionMath& math);

// Adds the keys of a block.
void attend(AttentionState& state, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
            c10::ArrayRef<AttentionTile> tiles, const AttentionMath& math);

struct AttentionGradients {
  at::Tensor queries, keys, values;
};

// Adds the share of a block of keys to `sums`. `whole`: the state after all blocks, `grad`: of its result.
void attend_backward(AttentionGradients& sums, const at::Tensor& grad, const AttentionState& whole,
                     const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                     c10::ArrayRef<AttentionTile> tiles, const AttentionMath& math);

}  // namespace dtensor::internal
