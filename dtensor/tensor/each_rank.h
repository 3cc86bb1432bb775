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

// Elements of a local tensor that an operator reads; 0 of one on a GPU, where ranks compute at the same time anyway.
inline int64_t num_cpu_elements(const at::Tensor& local) {
  return local.defined() && local.is_cpu() ? local.numel() : 0;
}

// f has what at::ThreadLocalState keeps of the calling thread: dispatch keys, grad mode, autocast, scopes; not whether
// it runs within backward(). Throws what the first of the ranks threw whose f threw; later ranks may have run.
void run_in_parallel(size_t ranks, absl::FunctionRef<void(size_t)> f);

// Whether ranks compute a call at the same time. num_elements(): how many elements the first local rank reads; the
// others read about as many.
template <typename NumElements>
bool are_in_parallel(size_t ranks, const NumElements& num_elements) {
  return ranks > 1 && ranks_are_parallel.load(std::memory_order_relaxed) &&
         num_elements() * static_cast<int64_t>(ranks) >= kParallelElements;
}

// Calls f(r) for each local rank r.
template <typename NumElements, typename F>
void run_on_each_rank(size_t ranks, const NumElements& num_elements, const F& f) {
  if (are_in_parallel(ranks, num_elements)) return run_in_parallel(ranks, f);
  for (size_t r = 0; r < ranks; ++r) f(r);
}

// The same for tensors that f returns.
template <typename NumElements, typename F>
RankTensors compute_on_each_rank(size_t ranks, const NumElements& num_elements, const F& f) {
  RankTensors results(ranks);
  run_on_each_rank(ranks, num_elements, [&](size_t r) { results[r] = f(r); });
  return results;
}

}  // namespace dtensor::internal
