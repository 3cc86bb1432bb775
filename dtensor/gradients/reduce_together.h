// Reduces gradients to the layouts of their leaves, many in one collective, in the dtype chosen for that. Called when a
// bucket is full (gradient_bucket.h).
//
// Errors name the leaves, the operation and this process's rank, besides what the collective says.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/comm_event.h"

namespace dtensor::internal {

struct ReduceOptions {
  std::string op = "gradient";  // as CommCause::op
  bool implicit = true;
  bool async = false;  // return while the collective is under way, as redistribute() with async_op
};

// Begins to redistribute the gradients of `leaves`, of one world, to the leaves' layouts: .grad is replaced by the sum,
// which may be arriving, or an open one (open_gradient.h) gets its contents. Leaves without a gradient, or with a plain
// one, or one in the layout already, are skipped.
void begin_reduction(std::vector<at::Tensor> leaves, const ReduceOptions& options);
// Waits for the sums of begin_reduction(). Errors: those of the collective, before any gradient is closed.
void wait_for_sums(const std::vector<at::Tensor>& leaves);
// Closes their open gradients.
void close_gradients(const std::vector<at::Tensor>& leaves);

// All of these.
void reduce_together(const std::vector<at::Tensor>& leaves, const ReduceOptions& options);

// `gradient` in the layout of `leaf`; differentiable.
at::Tensor reduce_at_once(const at::Tensor& leaf, const at::Tensor& gradient, const CommCause& cause);

}  // namespace dtensor::internal
