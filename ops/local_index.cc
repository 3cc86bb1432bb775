#include "ops/local_index.h"

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

namespace dtensor {

bool holds_all(const Runs& runs, int64_t size) {
  return size == 0 || (runs.size() == 1 && runs[0].begin == 0 && runs[0].size == size);
}

LocalIndex localize(const at::Tensor& index, const Runs& runs, int64_t otherwise) {
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
    for (const Run& run : runs) {
      begins.push_back(run.begin);
      ends.push_back(run.begin + run.size);
      shifts.push_back(run.begin - passed);
      passed += run.size;
    }
    const auto options = at::TensorOptions(at::kLong);
    const auto table = [&](const std::vector<int64_t>& v) { return at::tensor(v, options).to(index.device()); };
    // Of the runs that begin at or before the index, the last one.
    const at::Tensor run = at::bucketize(index, table(begins), /*out_int32=*/false, /*right=*/true).sub_(1);
    const at::Tensor known = run.clamp_min(0);
    result.held = run.ge(0).logical_and_(index.lt(table(ends).take(known)));
    result.index = index.sub(table(shifts).take(known).to(index.scalar_type()));
  }
  result.index.masked_fill_(result.held.logical_not(), otherwise);
  return result;
}

bool within(const at::Tensor& index, int64_t low, int64_t high) {
  const at::Tensor ok = index.ge(low).logical_and_(index.lt(high)).all();
  if (ok.device().is_cpu()) return ok.item().toBool();
  at::_assert_async(ok, "index out of bounds");
  return true;
}

void throw_out_of_range(const LocalCall& call, torch::jit::Stack stack) {
  const at::Tensor self = stack.at(0).toTensor();
  const Shape& sizes = call.inputs[0]->sizes();
  stack[0] = at::zeros({}, self.options()).expand(c10::IntArrayRef(sizes.data(), sizes.size()));
  call.op.callBoxed(stack);
  TORCH_CHECK_INDEX(false, call.op.schema().name(), ": index out of range in a tensor of shape ",
                    c10::IntArrayRef(sizes.data(), sizes.size()));
}

at::Tensor take_runs(const at::Tensor& t, int64_t dim, const Runs& runs) {
  std::vector<at::Tensor> pieces;
  for (const Run& run : runs) {
    const int64_t end = std::min(run.begin + run.size, t.size(dim));
    if (end > run.begin) pieces.push_back(t.narrow(dim, run.begin, end - run.begin));
  }
  if (pieces.empty()) return t.narrow(dim, 0, 0);
  return pieces.size() == 1 ? pieces[0] : at::cat(pieces, dim);
}

}  // namespace dtensor
