#include "comm/parallel_for.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

namespace dtensor::internal {

bool may_start_threads() { return at::get_num_threads() > 1 && !at::in_parallel_region(); }

void parallel_for(int64_t begin, int64_t end, int64_t grain, absl::FunctionRef<void(int64_t, int64_t)> f) {
  const int64_t size = end - begin;
  if (size <= 0) return;
  int64_t tasks = std::max<int64_t>(size / std::max<int64_t>(grain, 1), 1);
  if (tasks > 1) tasks = may_start_threads() ? std::min<int64_t>(tasks, at::get_num_threads()) : 1;
  if (tasks == 1) return f(begin, end);
  // A TensorIterator calls a function of its caller on LibTorch's threads. The elements of this tensor stand for tasks.
  const at::Tensor numbers = at::detail::empty_cpu({tasks}, at::kByte);
  const char* const first = static_cast<const char*>(numbers.const_data_ptr());
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .set_check_mem_overlap(false)
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(numbers)
                                    .build();
  iterator.for_each(
      [&](char** data, const int64_t*, int64_t count) {
        for (int64_t task = data[0] - first, last = task + count; task < last; ++task)
          f(begin + size * task / tasks, begin + size * (task + 1) / tasks);
      },
      /*grain_size=*/1);
}

}  // namespace dtensor::internal
