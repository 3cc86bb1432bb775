// Attention over a sequence that is sharded over a mesh dim, without gathering it on any rank.
//
//   ContextParallel scope("cp", {.method = ContextParallelMethod::kRing});
//   auto y = torch::scaled_dot_product_attention(q, k, v, {}, 0., /*is_causal=*/true);   // [batch, heads, length, size]
//
// Inside, every torch::scaled_dot_product_attention() of distributed tensors computes with query, key and value sharded
// by their length over the mesh dim, and so is its result; an argument in another layout is redistributed first, an
// implicit redistribution. On plain tensors nothing changes. Attention that a model composes of products and a softmax
// itself is not reached. Backward communicates alike, wherever it is called. kRing has no second derivatives, and
// kCheapest may choose it: name kAllToAll for them.
//
// Source: Liu et al., Ring Attention with Blockwise Transformers, 2023; Jacobs et al., DeepSpeed Ulysses, 2023;
// torch.distributed.tensor.experimental.context_parallel.
#pragma once

#include <cstdint>
#include <string>

#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor {

enum class ContextParallelMethod : uint8_t {
  kCheapest,  // the one of the two that the cost model prefers for the layouts of the call
  kRing,      // the blocks of key and value visit every rank in turn; no rank has more than two that are not its own
  // Each rank has some heads of the whole sequence meanwhile. Needs as many heads as the mesh dim has ranks, times the
  // ranks of other mesh dims that shard heads.
  kAllToAll,
};

struct ContextParallelOptions {
  ContextParallelMethod method = ContextParallelMethod::kCheapest;
  // The sequences are in the order of to_head_tail() (head_tail.h), so that all ranks have as much to do in causal
  // attention. is_causal then means the positions before that; a mask has rows and columns in the order of the tensors.
  bool load_balance = false;
};

namespace internal {

// The innermost ContextParallel scope.
struct ContextParallelSetting {
  std::string mesh_dim;
  ContextParallelOptions options;
};

}  // namespace internal

// A guard: lasts until the end of the block, and nests; of the current thread.
// Errors of scaled_dot_product_attention() inside: the mesh of its tensors has no such dim; dropout; a mask that
// requires grad; a tangent (forward-mode AD); tensors on different meshes; tensors of fewer than 3 or more than 4 dims;
// batches or heads that would broadcast; fewer heads than ranks with kAllToAll; those of ATen.
class ContextParallel {
 public:
  // `mesh_dim`: its name. Error (ValueError): an empty name.
  explicit ContextParallel(const std::string& mesh_dim, const ContextParallelOptions& options = {});

 private:
  internal::DispatchScopeGuard guard_;
};

}  // namespace dtensor
