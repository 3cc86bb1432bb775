#include "dtensor/tensor/each_rank.h"

#include <ATen/ThreadLocalState.h>

#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "comm/parallel_for.h"
#include "dtensor/parallel_ranks.h"

namespace dtensor {
namespace internal {

void run_in_parallel(size_t ranks, absl::FunctionRef<void(size_t)> f) {
  if (!may_start_threads()) {
    for (size_t r = 0; r < ranks; ++r) f(r);
    return;
  }
  const at::ThreadLocalState caller;
  const std::thread::id caller_id = std::this_thread::get_id();
  std::vector<std::exception_ptr> errors(ranks);
  parallel_for(0, static_cast<int64_t>(ranks), /*grain=*/1, [&](int64_t begin, int64_t end) {
    std::optional<at::ThreadLocalStateGuard> as_caller;
    if (std::this_thread::get_id() != caller_id) as_caller.emplace(caller);
    for (int64_t r = begin; r < end; ++r) {
      try {
        f(static_cast<size_t>(r));
      } catch (...) {
        errors[r] = std::current_exception();
        return;
      }
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace internal

void set_parallel_ranks(bool parallel) { internal::ranks_are_parallel.store(parallel); }

bool parallel_ranks() { return internal::ranks_are_parallel.load(); }

}  // namespace dtensor
