// The computation of a call on each rank that this process owns: one after the other, or at the same time
// (dtensor/parallel_ranks.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"
#include "comm/rank_tensors.h"

namespace dtensor::internal {

inline std::atomic<bool> ranks_are_parallel{false};

// Elements that the ranks read together, from which on it takes them longer to read these than to start threads.
inline constexpr int64_t kParallelElements = int64_t{1} << 18;

// Those of a local tensor, for the sum of a call: GPUs compute at the same time anyway.
inline int64_t num_cpu_elements(const at::Tensor& local) {
  return local.defined() && local.is_cpu() ? local.numel() : 0;
}

// What the calling thread has set holds for all calls of f: dispatch keys, grad mode, autocast, scopes. Throws what the
// first of the ranks threw whose f threw.
void run_ranks_in_parallel(size_t ranks, absl::FunctionRef<void(size_t)> f);

// Whether to do so for a call that reads num_elements(), of the first rank, on each rank.
template <typename NumElements>
bool are_in_parallel(size_t ranks, const NumElements& num_elements) {
  return ranks > 1 && ranks_are_parallel.load(std::memory_order_relaxed) &&
         num_elements() * static_cast<int64_t>(ranks) >= kParallelElements;
}

// f(r) for each local rank r. `num_elements`: as above.
template <typename NumElements, typename F>
void for_each_rank(size_t ranks, const NumElements& num_elements, const F& f) {
  if (are_in_parallel(ranks, num_elements)) return run_ranks_in_parallel(ranks, f);
  for (size_t r = 0; r < ranks; ++r) f(r);
}

// The same for tensors that f returns.
template <typename NumElements, typename F>
RankTensors compute_on_each_rank(size_t ranks, const NumElements& num_elements, const F& f) {
  RankTensors results;
  if (are_in_parallel(ranks, num_elements)) {
    results.resize(ranks);
    run_ranks_in_parallel(ranks, [&](size_t r) { results[r] = f(r); });
    return results;
  }
  results.reserve(ranks);
  for (size_t r = 0; r < ranks; ++r) results.push_back(f(r));
  return results;
}

}  // namespace dtensor::internal
