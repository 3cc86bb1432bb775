// One record per collective: its kind, its bytes, and its cause.
//
// Communicators report every call as a CommEvent to the listeners of the current thread's scope (scope.h).
// CommDebugMode, contracts and traces are listeners of this one stream, and so is, for the time of a scope,
//
//   struct Printer : CommListener {
//     void on_comm(const CommEvent& e, bool before) override {
//       if (!before) std::cout << to_string(e.collective) << " of " << e.bytes << " bytes for " << e.cause.op << "\n";
//     }
//   } printer;
//   ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&printer); });
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "comm/collective.h"
#include "comm/layout_change.h"

namespace dtensor {

// How many collectives this process has completed since it started, in all worlds and on all threads. Only grows:
// subtract two values for the count of a section. Thread-safe.
CollectiveCounts collectives_issued();

namespace internal {

// Communicators call it when one is done.
void count_collective(Collective c);

}  // namespace internal

// The origin of the communication.
struct CommCause {
  std::string op;           // "aten::mm", or the API function that was called: "redistribute", "full_tensor", ...
  std::string argument;     // the argument of `op` that was redistributed, "" where there is none
  std::string module_path;  // "layers.0.attn.wq", "after layers.0.attn.wq", "" if not known
  bool implicit = true;     // inserted by the engine, not asked for by the user
};

struct CommEvent {
  Collective collective = Collective::kBarrier;
  CommCause cause;
  bool backward = false;  // issued while autograd's engine ran
  std::string mesh_dims;  // names of the mesh dims whose groups took part: "tp", "dp,tp"
  int64_t group_size = 1;
  int64_t bytes = 0;  // received by one rank, the largest of the group, as planned
  // The bytes actually received, counted by the communicator: on the owned rank that received most; -1 before the call,
  // and where no rank is owned. Of an all_reduce of N bytes over W ranks 2 N (W-1)/W, of a reduce_scatter N (W-1)/W, as
  // in `bytes`.
  int64_t received_bytes = -1;
  c10::ScalarType dtype = c10::ScalarType::Float;  // of the first tensor where several travel together
  int more_tensors = 0;                            // that travel with the first one
  double seconds = 0;                              // host time of the call
  // How the first tensor is redistributed; null where it is no distributed tensor. to_string(*layout_change,
  // more_tensors) says it of all.
  std::shared_ptr<const LayoutChange> layout_change;
};

namespace internal {

struct CommView;    // comm_call.h
struct ReuseEvent;  // reuse_event.h
struct WorkEvent;   // work_event.h

class CommListener {
 public:
  virtual ~CommListener() = default;
  // Called on the thread that issued the collective, before it runs (seconds == 0) when `before`, and after it.
  // Throwing from the call before prevents the communication.
  virtual void on_comm(const CommEvent& event, bool before) = 0;
  // The same for listeners that want to see the groups and tensors, too.
  virtual void on_call(const CommEvent& event, const CommView& /*view*/, bool before) { on_comm(event, before); }
  // In place of the on_call() after it, where there is none: a listener that was asked after this one threw, so that
  // nothing was sent, or the communication failed (seconds > 0).
  virtual void on_failed(const CommEvent& /*event*/, const CommView& /*view*/) noexcept {}
  // A call that went on after on_call() has ended, as its results are needed: CommView::begun. Called on the thread
  // that waited, once, if the listener is in its scope; never if the call failed, or if nothing waits for it.
  virtual void on_wait(uint64_t /*begun*/) {}
  // An operator has run.
  virtual void on_work(const WorkEvent& /*event*/) {}
  // An operator took an input from a cache. Called only if wants_reuse().
  virtual void on_reuse(const ReuseEvent& /*event*/) {}
  // Always the same for one listener. If no listener of the scope wants them, the events are not made.
  virtual bool wants_reuse() const { return false; }
};

}  // namespace internal

}  // namespace dtensor
