// What code inside a block may rely on. Each is a guard: it holds until the end of the block, nests, and reaches
// autograd's threads when backward is called inside. All are values of the current thread (comm/thread_scope.h).
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
// torch::empty() does not. What operators give of plain tensors alone is plain, too. Error (ValueError): no mesh.
class MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);

 private:
  DispatchScopeGuard guard_;
  c10::impl::IncludeDispatchKeyGuard factories_reach_us_{kBothDTensorKeys};
};

// Inside of a MeshScope: factory functions make plain tensors, for code that fills them through a pointer.
//
//   PlainFactories plain;
//   auto image = torch::empty({3, 224, 224}, torch::kByte);
//   decode(file, image.data_ptr<uint8_t>());   // distribute_tensor(image, mesh) comes next
class PlainFactories {
 public:
  PlainFactories() = default;

 private:
  DispatchScopeGuard guard_{[](DispatchScope& s) { s.mesh = DeviceMesh(); }};
};

// A plain tensor beside a distributed one counts as a value that all ranks hold, instead of being an error. PyTorch:
// implicit_replication(). Only right where every rank is known to hold the same values.
class ImplicitReplication {
 public:
  ImplicitReplication() = default;

 private:
  DispatchScopeGuard guard_{[](DispatchScope& s) { s.implicit_replication = true; }};
};

// An operator without a sharding rule runs on gathered inputs, counted as communication, instead of being an error.
class ReplicateUnsupported {
 public:
  ReplicateUnsupported() = default;

 private:
  DispatchScopeGuard guard_{[](DispatchScope& s) { s.replicate_unsupported = true; }};
};

// Gradients stay in the layout that backward computes them in (Partial, mostly): for accumulation over several backward
// passes. Call reduce_gradients() once before the optimizer step. PyTorch: no_sync().
class DelayGradientReduction {
 public:
  DelayGradientReduction() = default;

 private:
  DispatchScopeGuard guard_{[](DispatchScope& s) { s.delay_gradient_reduction = true; }};
};

// No redistribution, asked for or inserted by the engine, keeps more than `max_bytes` alive at once on a rank: the part
// it starts from, the one it makes, and what lies between, as RedistributePlan::peak_bytes counts them. It takes
// another route, or sends in several rounds; an operator takes another strategy, if it finds one. Limits nest: the
// smallest holds. A limit must be the same on every rank, as it decides what is sent. Backward keeps it where
// backward() is called inside. Errors: max_bytes < 1 (ValueError); inside, before anything is sent, a redistribution
// that no route brings below it (the text names a limit that would do).
class RedistributeMemoryLimit {
 public:
  explicit RedistributeMemoryLimit(int64_t max_bytes);

 private:
  DispatchScopeGuard guard_;
};

// Names the module that runs, for reports: paths nest, "encoder" inside "model" is "model.encoder". An empty name adds
// nothing.
class ModulePath {
 public:
  explicit ModulePath(const std::string& name);

 private:
  ScopeGuard guard_;
};

// Brings every distributed gradient to its parameter's placements, in place of .grad: in as few collectives as
// can be, explicit, by the name "reduce_gradients". What is plain or has no gradient is left alone.
void reduce_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace dtensor
