// The order of a sequence that balances causal attention: of 2 n chunks, each of n ranks has one of the first half and
// one of the second.
//
//   ids = to_head_tail(ids, 1, 4);                                 // 8 chunks: 0 7 1 6 2 5 3 4
//   auto x = distribute_tensor(ids, mesh, {Shard(1)});             // rank 0 has chunks 0 and 7, rank 1 has 1 and 6
//   ContextParallel scope("cp", {.load_balance = true});
//   auto y = from_head_tail(model(x), 1, 4);
//
// Reorder whatever belongs to a position alike: ids, targets, tables of positions. Source: the head-tail load balancer
// of torch.distributed.tensor.experimental.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "placement/geometry.h"

namespace dtensor {

// `t`, plain or distributed, with dim `dim` cut into 2 * `ranks` chunks (by torch.chunk's rule) in the order 0, 2n-1,
// 1, 2n-2, ...; differentiable. Chunks and parts are equal where the size is a multiple of 2 * `ranks`; for other sizes
// attention is as exact, and the work only nearly balanced. Of a distributed tensor whose `dim` is sharded it
// communicates. Errors (ValueError): `ranks` < 1; (IndexError) no such dim.
at::Tensor to_head_tail(const at::Tensor& t, int64_t dim, int64_t ranks);
// The inverse.
at::Tensor from_head_tail(const at::Tensor& t, int64_t dim, int64_t ranks);

namespace internal {

// The positions of a sequence of `length` in that order, as the runs of the chunks; none is empty.
std::vector<IndexRange> head_tail_runs(int64_t length, int64_t ranks);

}  // namespace internal

}  // namespace dtensor
