#include "dtensor/head_tail.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

// Indices of a dim, as a plain tensor, the same on every rank.
at::Tensor head_tail_indices(int64_t length, int64_t ranks, bool back, c10::Device device) {
  const LocalGuard plain;
  at::Tensor indices = at::empty({length}, at::kLong);
  int64_t* const data = indices.mutable_data_ptr<int64_t>();
  int64_t i = 0;
  for (const IndexRange& run : head_tail_runs(length, ranks)) {
    for (int64_t position = run.begin; position < run.begin + run.size; ++position, ++i) {
      if (back) {
        data[position] = i;
      } else {
        data[i] = position;
      }
    }
  }
  return indices.to(device);
}

at::Tensor reordered(const at::Tensor& t, int64_t dim, int64_t ranks, bool back, const char* function) {
  TORCH_CHECK_VALUE(ranks >= 1, "[", function, "] `ranks` is ", ranks,
                    "; give the size of the mesh dim that shards the sequence");
  dim = at::maybe_wrap_dim(dim, t.dim());
  return t.index_select(dim, head_tail_indices(t.size(dim), ranks, back, t.device()));
}

}  // namespace

namespace internal {

std::vector<IndexRange> head_tail_runs(int64_t length, int64_t ranks) {
  std::vector<IndexRange> runs;
  for (int64_t i = 0; i < ranks; ++i) {
    for (int64_t c : {i, 2 * ranks - 1 - i}) {
      const IndexRange run = chunk(length, 2 * ranks, c);
      if (run.size > 0) runs.push_back(run);
    }
  }
  return runs;
}

}  // namespace internal

at::Tensor to_head_tail(const at::Tensor& t, int64_t dim, int64_t ranks) {
  return reordered(t, dim, ranks, /*back=*/false, "to_head_tail");
}

at::Tensor from_head_tail(const at::Tensor& t, int64_t dim, int64_t ranks) {
  return reordered(t, dim, ranks, /*back=*/true, "from_head_tail");
}

}  // namespace dtensor
