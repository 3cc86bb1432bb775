// Ring attention: the queries of each rank stay, and the blocks of keys and values visit every rank along one mesh dim.
// Below autograd; the collectives are one permute per step, on every rank alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "ops/network/blockwise_attention.h"
#include "plan/spec.h"

namespace dtensor::internal {

// A call, the same on all ranks. q, k, v: [batch, heads, length, features], sharded along dim 2 over mesh dim `dim`
// alone, k and v alike; over other mesh dims by batch or heads, all three alike, so that a rank has the key heads of
// its heads.
struct RingCall {
  SpecPtr q, k, v;
  int64_t dim = 0;
  bool causal = false;
  bool head_tail = false;  // the sequences are in the order of to_head_tail()
  double scale = 1;
  std::string module_path;

  int64_t num_ranks() const { return q->mesh().size(dim); }
};

// `mask`: undefined, or [1 or batch, 1 or heads, 1 or length of q, 1 or length of k]: as q, but replicated where that
// is 1.
struct RingInputs {
  at::Tensor q, k, v, mask;
};

struct RingResult {
  at::Tensor out;             // laid out as q, with v's features
  at::Tensor max_score, sum;  // as those of AttentionState, [batch, heads, length], likewise
};

// n - 1 permutes of k and v over n ranks.
RingResult ring_attention(const RingCall& call, const RingInputs& in);

// Laid out as q, k, v.
struct RingGradients {
  at::Tensor q, k, v;
};
// `grad`: of the result, laid out like it. n - 1 permutes of k and v, and n - 1 of their gradients, in single precision
// for half types; of the latter none if not `of_keys`, and k and v are undefined then.
RingGradients ring_attention_backward(const RingCall& call, const at::Tensor& grad, const RingInputs& in,
                                      const RingResult& result, bool of_keys);

// Pairs of a query and a key that it sees, per batch and head.
struct AttentionPairs {
  double of_rank = 0;  // that has most
  double whole = 0;
};
AttentionPairs attention_pairs(const RingCall& call);

}  // namespace dtensor::internal
