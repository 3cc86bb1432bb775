// The settings that the guards of scopes.h make for operators, on the current thread.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/thread_scope.h"
#include "mesh/device_mesh.h"
#include "propagation/call_context.h"

namespace dtensor::internal {

class StepDecider;              // step_decider.h
struct ContextParallelSetting;  // context_parallel.h

struct DispatchScope {
  static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO; }

  DeviceMesh mesh;                        // factories make replicated tensors on it (MeshScope)
  bool implicit_replication = false;      // plain tensors next to distributed ones count as replicated
  bool replicate_unsupported = false;     // operators without a rule run on replicated inputs
  bool delay_gradient_reduction = false;  // gradients keep the layout in which backward computed them
  ScopeHints hints;                       // for decisions (RedistributeMemoryLimit, LossParallel)
  StepDecider* step_decider = nullptr;    // decides calls one by one (PinnedLayouts)
  int64_t communication_chunks = 1;       // of an exchange next to a product (OverlapCommunication)
  // How attention over a sharded sequence is computed (ContextParallel); null: as the operators' rules say.
  std::shared_ptr<const ContextParallelSetting> context_parallel;
};

using DispatchScopeGuard = ThreadScope<DispatchScope>::Guard;
inline const DispatchScope& current_dispatch_scope() { return ThreadScope<DispatchScope>::current(); }

}  // namespace dtensor::internal
