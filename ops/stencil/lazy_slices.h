// Slices and selections of split dims, of which nothing moves before somebody reads them: what is only sliced again, or
// overwritten as a whole, never does. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/plan.h"

namespace dtensor {

struct LateSlice {
  c10::OperatorHandle op;
  at::Tensor self;                       // of which it is taken
  SpecPtr view;                          // its layout
  int64_t offset = 0;                    // where it begins in the memory of self
  std::vector<int64_t> cutting;          // mesh dims that cut what is taken
  std::shared_ptr<const HaloPlan> plan;  // from self
  int64_t selected_dim = -1;             // of self: is gone in the view
  CommCause cause;
};

// A copied view (view_origin.h) of the tensor that `self` is a slice of, where ranks have most of it there, or of self.
// Who reads it has what ranks lack moved, in a collective call: by itself, or with what was read of other such tensors
// (slice_history.h). What has come so lies around the parts, remembered (cached_layouts.h) until somebody writes.
at::Tensor make_late_slice(LateSlice slice);

}  // namespace dtensor
