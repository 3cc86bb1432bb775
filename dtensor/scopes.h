// Settings for the code inside a block. Each is a guard: it lasts until the end of the block, nests, and applies in
// autograd's threads when backward is called inside. All belong to the current thread (comm/thread_scope.h).
//
//   MeshScope inside(mesh);
//   auto positions = torch::arange(64);   // replicated on `mesh`, like every tensor that a factory makes here
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/scope.h"
#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/dispatch_scope.h"

namespace dtensor {

// Factory functions (arange, zeros, empty, rand, ...) make replicated tensors on `mesh`, so that model code which makes
// positions or masks in forward needs no change; random ones draw the same values on all ranks. torch::tensor({...})
// stays plain, also after it is filled, and so does at::empty(), which LibTorch's own code fills through a pointer;
// torch::empty() does not. Results of operators on plain tensors alone are plain, too. Error (ValueError): no mesh.
class MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);

 private:
  internal::DispatchScopeGuard guard_;
  c10::impl::IncludeDispatchKeyGuard factories_reach_us_{internal::kBothDTensorKeys};
};

// Inside a MeshScope: factory functions make plain tensors, for code that fills them through a pointer.
//
//   PlainFactories plain;
//   auto image = torch::empty({3, 224, 224}, torch::kByte);
//   decode(file, image.data_ptr<uint8_t>());   // distribute_tensor(image, mesh) comes next
class PlainFactories {
 public:
  PlainFactories() = default;

 private:
  internal::DispatchScopeGuard guard_{[](internal::DispatchScope& s) { s.mesh = DeviceMesh(); }};
};

// A plain tensor next to a distributed one counts as a value that all ranks hold, instead of being an error. PyTorch:
// implicit_replication(). Only right where every rank is known to hold the same values.
class ImplicitReplication {
 public:
  ImplicitReplication() = default;

 private:
  internal::DispatchScopeGuard guard_{[](internal::DispatchScope& s) { s.implicit_replication = true; }};
};

// An operator without a sharding rule runs on gathered inputs, counted as communication, instead of being an error.
class ReplicateUnsupported {
 public:
  ReplicateUnsupported() = default;

 private:
  internal::DispatchScopeGuard guard_{[](internal::DispatchScope& s) { s.replicate_unsupported = true; }};
};

// Gradients stay in the layout that backward computes them in (Partial, mostly): for accumulation over several backward
// passes. Call reduce_gradients() once before the optimizer step. PyTorch: no_sync().
class DelayGradientReduction {
 public:
  DelayGradientReduction() = default;

 private:
  internal::DispatchScopeGuard guard_{[](internal::DispatchScope& s) { s.delay_gradient_reduction = true; }};
};

// Scores that are sharded by class, and their gradients, stay where they are in cross_entropy, log_softmax and
// nll_loss: the ranks exchange a few numbers per row instead, and targets come to the scores. Without the scope the
// engine chooses by price, and moves short rows themselves. Backward keeps it where backward() is called inside.
// PyTorch: loss_parallel(). Error (c10::Error), before the operator sends anything: scores would have to move, as where
// a StridedShard cuts the classes, or the gradient of log_softmax is sharded by rows over the same mesh dim.
class LossParallel {
 public:
  LossParallel() = default;

 private:
  internal::DispatchScopeGuard guard_{[](internal::DispatchScope& s) { s.hints.keep_class_shards = true; }};
};

// No redistribution, asked for or inserted by the engine, keeps more than `max_bytes` alive at once on a rank: its
// source, its result and intermediate tensors, as RedistributePlan::peak_bytes counts them. It takes another route, or
// sends in several rounds; an operator takes another strategy, if there is one. Limits nest: the smallest applies. A
// limit must be the same on every rank, as it decides what is sent. It applies to backward if backward() is called
// inside. Errors: max_bytes < 1 (ValueError); inside, before anything is sent, a redistribution for which no route
// stays below it (the text names a limit that suffices).
class RedistributeMemoryLimit {
 public:
  explicit RedistributeMemoryLimit(int64_t max_bytes);

 private:
  internal::DispatchScopeGuard guard_;
};

// Names the running module, for reports: paths nest, "encoder" inside "model" is "model.encoder". An empty name adds
// nothing.
class ModulePath {
 public:
  explicit ModulePath(const std::string& name);

 private:
  internal::ScopeGuard guard_;
};

// Redistributes every distributed gradient to its parameter's placements and replaces .grad: in as few collectives as
// possible, explicit, by the name "reduce_gradients". Plain and missing gradients are skipped.
void reduce_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace dtensor
