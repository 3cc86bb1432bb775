// Gradients of one backward that are reduced together in buckets, by reduce_together.h.
//
// A data-parallel step would call one all-reduce for each parameter. Instead, the gradients of one backward() stay
// Partial in a bucket of up to gradient_bucket_bytes(world), which counts the largest local tensor of each, so that all
// ranks close it at the same gradient. When it is full, and at the end of the backward, its gradients are redistributed
// to their parameters' layouts in as few collectives as possible. Without overlap it takes no extra memory: a gradient
// larger than the parameter's local tensor (of a sharded parameter) is reduced at once. Gradients of a LeafGroup wait
// for the last one of their group, and are reduced then; those of fully_shard() whatever their size. With overlap a
// reduction only begins then, and is waited for at the end of the backward.
//
// Gradients of embedding tables that need the rows of the whole batch are deferred, too: the rows for all tables come
// in one collective. Until then their inputs stay alive, up to the size of a bucket.
//
// Source: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training, VLDB 2020.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace dtensor::internal {

// Inside backward: whether gradients may be finished when backward() returns. False for gradients of gradients, and for
// gradients of chosen tensors. Hooks do not matter: one rank may have some and others none, and all communicate the
// same.
bool may_wait_in_bucket();

// Inside backward: lets `gradient` pass to `leaf`.grad in its layout, if possible, and redistributes .grad to the
// leaf's layout before backward() returns. An existing .grad gets the gradient's layout meanwhile (open_gradient.h), or
// is put aside, if the leaf is of a group of fully_shard().
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
  // The backward has ended. If it has failed, some calls still wait: they are not computed, and a .grad among them
  // becomes undefined, as it was before. May be called again; does not throw.
  virtual void undo_all() = 0;
};
// Inside backward: the one of this backward, made if there is none; its compute_all() is called before backward()
// returns, and its undo_all() once the backward has ended.
std::shared_ptr<DeferredWork> deferred_work(const std::function<std::shared_ptr<DeferredWork>()>& make);

}  // namespace dtensor::internal
