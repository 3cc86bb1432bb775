// Gradients of one backward that are reduced together in buckets.
//
// A data-parallel step would call one all-reduce for each parameter. Instead, the gradients of one backward() stay
// Partial in a bucket of up to gradient_bucket_bytes(world), which counts the largest local tensor of each, so that all
// ranks close it at the same gradient. When it is full, and at the end of the backward, its gradients are redistributed
// to their parameters' layouts in as few collectives as possible. The bucket takes no extra memory: a gradient larger
// than the parameter's local tensor (of a sharded parameter) is reduced at once. Gradients of a LeafGroup (of
// fully_shard()) wait, whatever their size, for the last one of their group, and are reduced then.
//
// Gradients of embedding tables that need the rows of the whole batch are deferred, too: the rows for all tables come
// in one collective. Until then their inputs stay alive, up to the size of a bucket.
//
// Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "plan/spec.h"

namespace dtensor::internal {

// Inside backward: whether gradients may be finished when backward() returns. False for gradients of gradients, and for
// gradients of chosen tensors. Hooks do not matter: one rank may have some and others none, and all communicate the
// same.
bool may_wait_in_bucket();

// Inside backward: lets `gradient` pass to `leaf`.grad in its layout, if possible, and redistributes .grad to the
// leaf's layout before backward() returns. An existing .grad gets the gradient's layout meanwhile (open_gradient()), or
// is put aside, if the leaf is of a LeafGroup.
// Returns false, and does nothing, if that is not possible.
bool put_in_bucket(const at::Tensor& leaf, const at::Tensor& gradient);

// Inside backward, when the gradient of `leaf` has been accumulated: reduces those of its group if it was the last one.
void note_accumulated(const at::Tensor& leaf);

// Inside backward, when `leaf`.grad will be another handle of the memory of `gradient`: if a hook has kept `gradient`,
// .grad gets memory of its own before backward() returns.
void part_in_the_end(const at::Tensor& leaf, const at::Tensor& gradient);

// Computes deferred gradients, all at once.
class DeferredWork {
 public:
  virtual ~DeferredWork() = default;
  virtual void compute_all() = 0;
};
// Inside backward: the one of this backward, made if there is none; its compute_all() is called before backward()
// returns.
std::shared_ptr<DeferredWork> deferred_work(const std::function<std::shared_ptr<DeferredWork>()>& make);

// An existing .grad to which gradients are added before they are reduced is open: it has the layout of the new
// gradients, mostly Partial, with its previous value as one of the addends. Closing it restores its layout and memory,
// with the sum in it, so that optimizers and views that refer to either see the sum.
//
// Opens `grad`: changes its layout to `placements`, without communication. Returns false, and does nothing, if that is
// not possible.
bool open_gradient(const at::Tensor& grad, const Placements& placements);

// Redistributes the gradients of `leaves`, of one world, to the leaves' layouts: replaces .grad, or writes to the
// memory of an open one. Leaves without a gradient, or with a plain one, are skipped. `op`: as CommCause::op.
// Floating-point gradients of a LeafGroup are reduced in its reduce_dtype, and cast back.
void reduce_together(std::vector<at::Tensor> leaves, const std::string& op, bool implicit);

}  // namespace dtensor::internal
