// The current thread's scope for communication: its listeners, and the module it is in.
//
//   ScopeGuard guard([&](Scope& s) { s.module_path = "encoder"; });
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string>
#include <vector>

#include "comm/comm_event.h"
#include "comm/thread_scope.h"

namespace dtensor::internal {

struct Scope {
  static c10::DebugInfoKind kind() { return c10::DebugInfoKind::TEST_INFO_2; }

  std::vector<CommListener*> listeners;  // innermost last; each must outlive the scope it was added in
  std::string module_path;
};

using ScopeGuard = ThreadScope<Scope>::Guard;
inline const Scope& current_scope() { return ThreadScope<Scope>::current(); }
// Cheap on a thread without scopes.
inline bool has_listeners() {
  return c10::ThreadLocalDebugInfo::current() != nullptr && !current_scope().listeners.empty();
}

// While autograd's engine runs on this thread.
bool in_backward();

// The listener of all threads, notified after the scope's; null if there is none. `make` is called once, at the first
// collective. For tracing requested by the environment.
CommListener* process_listener();
void set_process_listener(CommListener* (*make)());

}  // namespace dtensor::internal
