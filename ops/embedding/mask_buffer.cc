#include "ops/embedding/mask_buffer.h"

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/equal.h>

namespace dtensor::internal {
namespace {

at::Tensor outside(const at::Tensor& ids, int64_t begin, int64_t end) {
  return at::bitwise_or(ids.lt(begin), ids.ge(end));
}

}  // namespace

at::Tensor MaskBuffer::materialize(const at::Tensor& ids, int64_t offset, int64_t size) {
  const at::Tensor mask = outside(ids, offset, offset + size);
  TORCH_CHECK(uses_ == 0 || at::equal(mask, mask_), "MaskBuffer has been materialized with conflicting data");
  mask_ = mask;
  ++uses_;
  return ids.sub(offset).masked_fill_(mask, 0);
}

void MaskBuffer::apply_(const at::Tensor& output) const {
  TORCH_CHECK(uses_ > 0, "MaskBuffer has not been materialized");
  output.masked_fill_(output.dim() == mask_.dim() ? mask_ : mask_.unsqueeze(-1), 0);
}

void MaskBuffer::release() {
  TORCH_CHECK(uses_ > 0, "MaskBuffer has not been materialized");
  if (--uses_ == 0) mask_ = at::Tensor();
}

at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows) {
  const at::Tensor wrong = outside(ids, 0, num_rows).any();
  if (ids.is_cuda()) {
    at::_assert_async(wrong.logical_not(), "index out of range in self");
  } else {
    TORCH_CHECK_INDEX(!wrong.item<bool>(), "index out of range in self");
  }
  if (part.size(0) == 0) {  // no rows, not even for masked ids
    std::vector<int64_t> sizes = ids.sizes().vec();
    sizes.push_back(part.size(1));
    return part.new_zeros(sizes);
  }
  MaskBuffer mask;
  at::Tensor rows = at::embedding(part, mask.materialize(ids, offset, part.size(0)));
  mask.apply_(rows);
  mask.release();
  return rows;
}

at::Tensor masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                     int64_t num_own_rows, int64_t padding_idx, bool scale_grad_by_freq) {
  // Masked ids are mapped to one more row, as padding, which ATen skips.
  const at::Tensor masked = outside(ids, offset, offset + num_own_rows).logical_or_(ids.eq(padding_idx));
  const at::Tensor own = ids.sub(offset).masked_fill_(masked, num_own_rows);
  return at::embedding_dense_backward(grad, own, num_own_rows + 1, num_own_rows, scale_grad_by_freq)
      .narrow(0, 0, num_own_rows);
}

}  // namespace dtensor::internal
