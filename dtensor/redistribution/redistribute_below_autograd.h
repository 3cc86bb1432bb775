// Redistribution below autograd: for operators and handlers to change the layout of their arguments.
//
// All functions obey the RedistributeMemoryLimit of the current thread and options.max_bytes, whichever is smaller.
// Errors (c10::Error, before anything is sent): no route stays within it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <vector>

#include "comm/comm_event.h"
#include "dtensor/redistribute_options.h"
#include "plan/layout.h"
#include "plan/limits.h"

namespace dtensor::internal {

// A tensor with memory of its own, or `t` itself if the placements are the present ones.
at::Tensor redistribute_below_autograd(const at::Tensor& t, const Placements& to, const CommCause& cause,
                                       const RedistributeOptions& options = {});

// The same for many tensors of one world, each to a layout by placements on a mesh of it, in as few collectives as
// possible.
std::vector<at::Tensor> redistribute_below_autograd(at::TensorList tensors, c10::ArrayRef<Layout> to,
                                                    const CommCause& cause, const RedistributeOptions& options = {});

// The smaller of `options` and the current thread's scope.
Limits limits_of(const RedistributeOptions& options);

}  // namespace dtensor::internal
