// Tensor parallelism whose communication travels while matrix products compute.
//
//   parallelize_module(*model, mesh, {{"*.norm", SequenceParallel()},
//                                     {"*.up", ColwiseParallel()},
//                                     {"*.down", RowwiseParallel({.output = Shard(1)})}});
//   OverlapCommunication scope({.chunks = 4});
//   loss(model->forward(x)).backward();   // each gather and each reduction of tokens is four, next to the products
//
// Inside, a Linear with a parallel style whose input is gathered, or whose result is reduced and scattered, along a dim
// that is not the features, runs in chunks of rows, and so does an mm() or addmm() that gathers its rows by itself:
// while one chunk is multiplied, the exchange of the next one, or of the one before, is under way, if the world's
// backend runs asynchronously, as with async_op (redistribute.h): between processes it does, and in one process copies
// take place at once. The backward of the Linear does the same, wherever it is called; where forward gathers its input,
// the gradients of weight and bias are computed while the last chunks of the input's gradient are under way. Values are
// those of the unchunked call up to rounding; layouts and bytes are the same; each of these exchanges is `chunks`
// collectives instead of one.
//
// All else computes as outside: other operators without a style, a gather that is not over one mesh dim, autocast, a
// redistribution that RedistributeMemoryLimit sends in rounds, and forward-mode derivatives. A Linear
// in chunks has no second derivatives.
//
// Source: Wang et al., Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning
// Models, ASPLOS 2023; PyTorch's async tensor parallelism (_fused_all_gather_matmul, _fused_matmul_reduce_scatter).
#pragma once

#include <cstdint>

#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor {

struct OverlapOptions {
  // Of the rows of every rank: of the first dim with so many, else of the dim that is exchanged, as many as it has
  // rows. 1: nothing is chunked. The same on every rank, as it decides what is sent.
  int64_t chunks = 4;
};

// A guard: lasts until the end of the block, and nests, the innermost applies; of the current thread.
// Error (ValueError): chunks < 1.
class OverlapCommunication {
 public:
  explicit OverlapCommunication(const OverlapOptions& options = {});

 private:
  internal::DispatchScopeGuard guard_;
};

}  // namespace dtensor
