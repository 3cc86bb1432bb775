// Marks the ids that are not among a rank's rows of a table (torch.distributed.tensor's MaskBuffer). One buffer belongs
// to one looked-up value, never to a placement or a cached decision: two values of equal layout have different masks.
//
//   MaskBuffer mask;
//   at::Tensor rows = at::embedding(part, mask.materialize(ids, /*offset=*/4, /*size=*/4));
//   mask.apply_(rows);  // what this rank adds to the sum over ranks
//   mask.release();
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::internal {

class MaskBuffer {
 public:
  // Ids counted from `offset`; those outside [offset, offset + size) are masked and become 0. Starts one use.
  // Error (c10::Error): the buffer is in use with another mask.
  at::Tensor materialize(const at::Tensor& ids, int64_t offset, int64_t size);

  // Zeroes the masked entries: rows of `output` if it has one dim more than the ids, or elements if it has as many.
  // Error: nothing was materialized.
  void apply_(const at::Tensor& output) const;

  // Ends one use; the last one frees the mask. Error: nothing was materialized.
  void release();

  bool materialized() const { return uses_ > 0; }

 private:
  at::Tensor mask_;
  int64_t uses_ = 0;
};

// Rows [offset, offset + part.size(0)) of a table of `num_rows`, looked up: zeros for ids of other rows. For any
// device. Error (IndexError): an id outside [0, num_rows); on CUDA a device assertion.
at::Tensor masked_embedding(const at::Tensor& part, const at::Tensor& ids, int64_t offset, int64_t num_rows);

// The gradient of rows [offset, offset + num_own_rows): ids of other rows, and `padding_idx`, add nothing to it. For
// any device and dtype; does not check ids.
at::Tensor masked_embedding_backward(const at::Tensor& grad, const at::Tensor& ids, int64_t offset,
                                     int64_t num_own_rows, int64_t padding_idx, bool scale_grad_by_freq);

}  // namespace dtensor::internal
