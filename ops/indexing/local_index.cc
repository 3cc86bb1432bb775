#include "ops/indexing/local_index.h"

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

namespace dtensor::internal {

bool holds_all(const IndexRanges& runs, int64_t size) {
  return size == 0 || (runs.size() == 1 && runs[0].begin == 0 && runs[0].size == size);
}

LocalIndex localize(const at::Tensor& index, const IndexRanges& runs, int64_t otherwise) {
  LocalIndex result;
  if (runs.empty()) {
    result.index = at::full_like(index, otherwise);
    result.held = at::zeros_like(index, at::TensorOptions(at::kBool));
    return result;
  }
  if (runs.size() == 1) {
    result.held = index.ge(runs[0].begin).logical_and_(index.lt(runs[0].begin + runs[0].size));
    result.index = index.sub(runs[0].begin);
  } else {
    std::vector<int64_t> begins, ends, shifts;
    int64_t passed = 0;
    for (const IndexRange& run : runs) {
      begins.push_back(run.begin);
      ends.push_back(run.begin + run.size);
      shifts.push_back(run.begin - passed);
      passed += run.size;
    }
    const auto options = at::TensorOptions(at::kLong);
    const auto table = [&](const std::vector<int64_t>& v) { return at::tensor(v, options).to(index.device()); };
    // The last of the runs that begin at or before the index.
    const at::Tensor run = at::bucketize(index, table(begins), /*out_int32=*/false, /*right=*/true).sub_(1);
    const at::Tensor known = run.clamp_min(0);
    result.held = run.ge(0).logical_and_(index.lt(table(ends).take(known)));
    result.index = index.sub(table(shifts).take(known).to(index.scalar_type()));
  }
  result.index.masked_fill_(result.held.logical_not(), otherwise);
  return result;
}

void check_range(const at::Tensor& index, int64_t low, int64_t size, int64_t dim) {
  const at::Tensor outside = index.lt(low).logical_or_(index.ge(size));
  if (!index.device().is_cpu()) return at::_assert_async(outside.logical_not().all(), "index out of bounds");
  if (!outside.any().item().toBool()) return;
  TORCH_CHECK_INDEX(false, "index ", index.masked_select(outside)[0].item().toLong(),
                    " is out of bounds for dimension ", dim, " with size ", size);
}

at::Tensor take_runs(const at::Tensor& t, int64_t dim, const IndexRanges& runs) {
  std::vector<at::Tensor> pieces;
  for (const IndexRange& run : runs) {
    const int64_t end = std::min(run.begin + run.size, t.size(dim));
    if (end > run.begin) pieces.push_back(t.narrow(dim, run.begin, end - run.begin));
  }
  if (pieces.empty()) return t.narrow(dim, 0, 0);
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

}  // namespace dtensor::internal
