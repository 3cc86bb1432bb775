// Lazy slices and selections of sharded dims: nothing is communicated before one is read. A slice that is only sliced
// further, or overwritten as a whole, never communicates.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/comm_event.h"
#include "ops/halo/plan.h"

namespace dtensor::internal {

struct LazySlice {
  c10::OperatorHandle op;
  at::Tensor self;                       // the sliced tensor
  SpecPtr view;                          // layout of the slice
  int64_t offset = 0;                    // where it begins in the memory of self
  std::vector<int64_t> cutting;          // mesh dims that cut the sliced dims
  std::shared_ptr<const HaloPlan> plan;  // from self
  int64_t selected_dim = -1;             // dim of self that the view drops
  CommCause cause;
};

// A copied view (copied_view.h) of self; or, if `self` is itself a slice and ranks hold most of the view in its base or
// have the ghost region of that base, of that base. Reading it fetches what ranks lack in a collective call: alone, or
// with all slices that a ghost width was declared for (dtensor/ghost_width.h). Their ghost region is cached
// (cached_facts.h) until the tensor is written.
at::Tensor make_lazy_slice(LazySlice slice);

}  // namespace dtensor::internal
