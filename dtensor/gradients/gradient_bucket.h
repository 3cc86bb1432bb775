// Gradients of one backward that are reduced together.
//
// A data-parallel step would call one all-reduce for each parameter. The gradients of one backward() wait for each
// other instead, Partial as they are, up to kGradientBucketBytes; then, and at the end of the backward, all that wait
// are brought to their parameters' layouts in as few collectives as can be. Waiting takes no memory: what would be
// larger than the parameter's own part (a gradient that is to be split, as fully sharded ones) is reduced at once.
//
// Gradients of tables wait, too, that want the rows of the whole batch: those of all tables come in one collective.
// Until then they keep what they are computed of, as much as a bucket holds.
//
// Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/spec.h"

namespace dtensor {

// Of the largest part of each tensor, so that all ranks begin at the same one.
constexpr int64_t kGradientBucketBytes = 25 << 20;

// Inside backward: may gradients be finished when backward() returns? Not gradients of gradients, and not those of
// chosen tensors. Hooks make no difference: on one rank there may be some, and what is communicated is the same on all.
bool may_wait_in_bucket();

// Does a gradient laid out so take no more memory than the parameter's own part?
bool fits_bucket(const Spec& gradient, const Spec& leaf);

// Inside backward: lets `gradient` go on to `leaf`.grad as it is, if it may, and brings that to the leaf's layout
// before backward() returns. A .grad that is there is laid out like it meanwhile (open_gradient.h). False, and nothing
// done: it may not.
bool put_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient);

// Inside backward: `leaf`.grad will be another handle of the memory of `gradient`. Where a hook has kept `gradient`,
// .grad gets memory of its own before backward() returns.
void part_in_the_end(const at::Tensor& leaf, const at::Tensor& gradient);

// What makes gradients that wait, all at once.
class LateGradients {
 public:
  virtual ~LateGradients() = default;
  virtual void compute_all() = 0;
};
// Inside backward: that of this backward, made if there is none, which is asked to compute_all() before backward()
// returns.
std::shared_ptr<LateGradients> late_gradients(const std::function<std::shared_ptr<LateGradients>()>& make);

// Brings the gradients of `leaves`, of one world, to the leaves' layouts, in place of .grad, or in the memory of one
// that was open; those that have none by now, or a plain one, are left out. `op`: as CommCause::op.
void reduce_together(std::vector<at::Tensor> leaves, const std::string& op, bool implicit);

}  // namespace dtensor
