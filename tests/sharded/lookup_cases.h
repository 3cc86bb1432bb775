// What tests of lookups share: tables laid out over four ranks in several orders, input that differs per rank, and what
// a plain table gives for it.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "sharded/chunk_sharding_spec.h"
#include "sharded/embedding.h"
#include "sharded/shard_tensor.h"
#include "tests/sharded/test_world.h"

namespace dtensor::sharded {

inline const std::vector<std::vector<int64_t>>& rank_orders() {
  static const std::vector<std::vector<int64_t>> orders = {{0, 1, 2, 3}, {2, 3, 0, 1}, {3, 0, 1, 2}};
  return orders;
}

inline const std::vector<int64_t>& own_ranks() { return test_world().owned_ranks(); }

// Those of this process's ranks.
template <typename T>
std::vector<T> own(const std::vector<T>& of_all) {
  return per_rank(own_ranks(), [&](int64_t rank) { return of_all[rank]; });
}

// Whether every local shard, or its gradient, is its window of `whole`.
inline bool shards_are(const ShardedTensor& st, const at::Tensor& whole, bool gradient = false) {
  for (int64_t rank : own_ranks()) {
    for (const Shard& shard : st.local_shards(rank)) {
      const at::Tensor value = gradient ? shard.tensor.grad() : shard.tensor.detach();
      if (!value.defined() || !at::allclose(value, window(whole, shard.metadata))) return false;
    }
  }
  return true;
}

// The same numbers on every process.
inline std::vector<at::Tensor> ids_of_all(const std::vector<int64_t>& shape, int64_t rows, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  std::vector<at::Tensor> ids;
  for (int64_t rank = 0; rank < 4; ++rank) ids.push_back(at::randint(rows, shape, at::kLong));
  return ids;
}

inline at::Tensor table_of(int64_t rows, int64_t columns) {
  at::manual_seed(static_cast<uint64_t>(rows * 100 + columns));
  return at::rand({rows, columns}, at::kDouble) - 0.3;
}

}  // namespace dtensor::sharded
