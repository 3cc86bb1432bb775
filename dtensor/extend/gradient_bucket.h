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

namespace dtensor {

// Of the largest part of each tensor, so that all ranks begin at the same one.
constexpr int64_t kGradientBucketBytes = 25 << 20;

// Inside backward: may the gradient of `leaf` be finished when backward() returns? Not where somebody could see or need
// it before: the user's hooks of the leaf or of its accumulator, a .grad that it is added to, gradients of gradients,
// gradients of chosen tensors.
bool may_wait_in_bucket(const at::Tensor& leaf);

// Inside backward: lets `gradient` go on to `leaf`.grad as it is, if it may, and brings it to the leaf's layout before
// backward() returns. False: it may not.
bool put_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient);

// What makes gradients that wait, all at once.
class LateGradients {
 public:
  virtual ~LateGradients() = default;
  virtual void compute_all() = 0;
};
// Inside backward: that of this backward, made if there is none, which is asked to compute_all() before backward()
// returns.
std::shared_ptr<LateGradients> late_gradients(const std::function<std::shared_ptr<LateGradients>()>& make);

// Brings the gradients of `leaves`, of one world, to the leaves' layouts, in place of .grad; those that have none by
// now, or a plain one, are left out. `op`: as CommCause::op.
void reduce_together(std::vector<at::Tensor> leaves, const std::string& op, bool implicit);

}  // namespace dtensor
