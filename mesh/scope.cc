#include "mesh/scope.h"

namespace dtensor {
namespace {

// The kinds are a closed enum without one for libraries. This one is free: only ATen's own unit tests use it.
constexpr auto kKind = c10::DebugInfoKind::TEST_INFO_2;

// Set before main by a static object, hence a constant at first.
using MakeListener = CommListener* (*)();
constinit MakeListener make_process_listener = nullptr;

}  // namespace

const Scope& current_scope() {
  static const Scope& empty = *new Scope;  // leaked: other threads may look at it while the process exits
  const auto* scope = static_cast<const Scope*>(c10::ThreadLocalDebugInfo::get(kKind));
  return scope != nullptr ? *scope : empty;
}

CommListener* process_listener() {
  static CommListener* const listener = make_process_listener != nullptr ? make_process_listener() : nullptr;
  return listener;
}

void set_process_listener(CommListener* (*make)()) { make_process_listener = make; }

ScopeGuard::ScopeGuard(const std::function<void(Scope&)>& change) {
  auto scope = std::make_shared<Scope>(current_scope());
  change(*scope);
  c10::ThreadLocalDebugInfo::_push(kKind, std::move(scope));
}

ScopeGuard::~ScopeGuard() { c10::ThreadLocalDebugInfo::_pop(kKind); }

}  // namespace dtensor
