// Calls in the backward of embedding() and embedding_bag() that only produce a table's gradient are deferred, so that
// their inputs move in one collective. Example: the gradients of eight tables that all need the whole batch.
//
// The result exists at once, without memory. Reading it (meta_for_read()) computes it first, in a collective call, and
// so does writing to one of its inputs. Writes by the user to exposed local tensors are not seen: the deferred call
// keeps copies of such inputs. dispatch() defers calls by the CallHook of deferral_hook.cc.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/comm_work.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/gradients/gradient_bucket.h"
#include "dtensor/tensor/step_decider.h"
#include "propagation/decision.h"

namespace dtensor::internal {

struct DeferredCall {
  const OpInfo& info;
  Inputs in;  // handles of its own: the user may rebind theirs
  std::vector<c10::IValue> args;
  std::shared_ptr<const Decision> decision;
  decltype(CallHook::GradientCall::run) run;
  RankTensors parts;  // of its result, without memory until computed
  at::Tensor leaf;    // which gets it. Its .grad keeps the call, hence undefined from end() on
  int64_t bytes = 0;  // bytes it holds and gathers
  // In a recorded step: which recording, and which call.
  uint64_t recording = 0;
  StepDecider::CostShares charged = {};
  bool computed = false;
  bool held_back = false;              // its result is being overwritten
  std::exception_ptr error = nullptr;  // why it was not computed
  std::weak_ptr<CommWork> work = {};   // fills in `parts`

  // Until the call is computed, writes are watched.
  struct Watching {
    Watching() { CallHook::num_watching.fetch_add(1, std::memory_order_relaxed); }
    ~Watching() { CallHook::num_watching.fetch_sub(1, std::memory_order_relaxed); }
    Watching(const Watching&) = delete;
    Watching& operator=(const Watching&) = delete;
  };
  std::unique_ptr<Watching> watching = std::make_unique<Watching>();

  // Ends the call and releases its inputs. `why_not`: null if it was computed.
  void end(std::exception_ptr why_not);
};

// The deferred calls of one backward. Thread-safe. They are computed in collective calls.
// Errors: those of the communicator and of the operators; a call that failed throws its error again.
class DeferredGradients final : public DeferredWork {
 public:
  static std::shared_ptr<DeferredGradients> of_backward();
  // Those of all backwards in progress.
  static std::vector<std::shared_ptr<DeferredGradients>> all_backwards();

  // Adds a call. Waiting calls hold and gather no more than gradient_bucket_bytes(world), and are of one world: else
  // they are computed, and so is a larger call. Keeps the inputs' present values, even if their handles are rebound or
  // the user writes to their local tensors.
  void add(std::shared_ptr<DeferredCall> call);
  // Called before `t` is written: computes calls that read it, or its base.
  void compute_before_write(const at::Tensor& t);
  // Called before local tensors of that memory are exposed to the user, who may write to them at any time. Waits for
  // running calls that read them.
  void copy_before_unseen_writes(const LocalStorage& memory);
  // Computes all waiting calls, and `call` unless it was computed before.
  void compute(const DeferredCall& call);
  void compute_all() override;
  void undo_all() override;
  // Suspends a call whose result is about to be overwritten, and is zeros from now on: it is not computed meanwhile,
  // and its result is read as it is. False: it was computed before.
  bool suspend(DeferredCall& call);
  void resume(DeferredCall& call);  // the overwriting failed: the call waits again, or throws its error, as before
  void drop(DeferredCall& call);    // the overwriting is done

 private:
  using ReadsMemory = std::function<bool(const at::Tensor& in)>;  // whether the caller's memory is read through `in`

  bool any_reads(const ReadsMemory& reads);  // waiting or running calls
  // Makes the waiting calls read copies of that memory from now on. REQUIRES: computing_ is locked.
  void copy_inputs(const ReadsMemory& reads);
  // Computes the waiting calls of one world. False: none waits. REQUIRES: computing_ is locked.
  bool compute_waiting();
  void remove(const DeferredCall& call);  // from the waiting calls. REQUIRES: mutex_ is locked
  static void undo(DeferredCall& call);   // reading its result throws an error that says so from now on
  // Lets one rank alone read the results, or errors, of calls that have ended.
  static void settle(const std::vector<std::shared_ptr<DeferredCall>>& ended);

  std::mutex computing_;  // held while calls are computed, or their inputs replaced; locked before mutex_
  std::mutex mutex_;      // guards the other members, and the inputs of calls. A thread that holds it waits for nothing
  std::vector<std::shared_ptr<DeferredCall>> waiting_, in_hand_;  // suspended calls wait, too
  std::vector<std::shared_ptr<DeferredCall>> computed_;           // since the last compute_all()
  int64_t bytes_ = 0;                                             // of the waiting calls
  bool is_undone_ = false;                                        // undo_all() was called
};

}  // namespace dtensor::internal
