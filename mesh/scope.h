// What the current thread is inside of: listeners, module path, active mesh, guards.
//
// Scopes nest, end with their guard, and follow the work: autograd's engine threads see the scope of the thread that
// called backward (the frame rides on c10::ThreadLocalDebugInfo, as ATen's own thread state does).
//
//   ScopeGuard guard([&](Scope& s) { s.module_path = "encoder"; });
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mesh/comm_event.h"
#include "mesh/device_mesh.h"

namespace dtensor {

struct Scope : c10::DebugInfoBase {
  std::vector<CommListener*> listeners;  // innermost last; each must outlive the scope it was added in
  std::string module_path;
  DeviceMesh mesh;                        // factories make replicated tensors on it (MeshScope)
  bool implicit_replication = false;      // plain tensors beside distributed ones count as replicated
  bool replicate_unsupported = false;     // operators without a rule run on replicated inputs
  bool delay_gradient_reduction = false;  // gradients keep the layout that backward gave them
};

// The innermost scope of this thread; an empty one if there is none.
const Scope& current_scope();

// The listener of all threads, told after the scope's; null if there is none. `make` is called once, at the first collective.
// Internal: for what the environment asks for.
CommListener* process_listener();
void set_process_listener(CommListener* (*make)());

// Copies the current scope, lets `change` edit the copy, and makes it current until destruction. On one thread guards
// end in reverse order of their making.
class ScopeGuard {
 public:
  explicit ScopeGuard(const std::function<void(Scope&)>& change);
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;
};

}  // namespace dtensor
