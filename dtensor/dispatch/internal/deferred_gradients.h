// Calls in backward whose results nobody needs before its end, as they are gradients of parameters: their inputs move
// together, as eight tables' gradients do that all want the whole batch. Internal.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/gradients/gradient_bucket.h"
#include "dtensor/tensor/call_sites.h"
#include "propagation/decision.h"

namespace dtensor {

struct LateCall {
  const OpInfo& info;
  Inputs in;  // handles of its own: the user's may become something else
  std::vector<c10::IValue> args;
  std::shared_ptr<const Decision> decision;
  // The results of the call, of the parts of the inputs where the decision wants them.
  std::function<std::vector<RankTensors>(const LateCall& call, const std::vector<RankTensors>& inputs)> run;
  RankTensors parts;  // of its result, without memory until it is computed
  int64_t bytes = 0;  // what it holds and gathers
  // Of a recorded step: which one, and which call.
  uint64_t recording = 0;
  CallSites::Shares charged = {};
  bool computed = false;
  bool held_back = false;              // as somebody is overwriting its result
  std::exception_ptr error = nullptr;  // why it was not

  // Counts those that are not computed, in all of the process.
  struct Late {
    Late();
    ~Late();
    Late(const Late&) = delete;
    Late& operator=(const Late&) = delete;
  };
  std::unique_ptr<Late> late = std::make_unique<Late>();

  // Lets go of what it would be computed of, for good. `why_not`: null if it was computed.
  void end(std::exception_ptr why_not);
};

// A contiguous tensor whose memory is null until its call is computed. Views of it can be taken before.
at::Tensor without_memory(const Shape& sizes, const at::TensorOptions& options);

// Is anything late, anywhere? Cheap.
bool any_late_calls();

// Those of one backward. Thread-safe. They are computed in collective calls.
// Errors: those of the communicator and of the operators; a call that was not computed for one gives it again.
class LateCalls final : public LateGradients {
 public:
  static std::shared_ptr<LateCalls> of_backward();
  // All that are there.
  static std::vector<std::shared_ptr<LateCalls>> everywhere();

  // Those that wait hold and gather no more than kGradientBucketBytes, and are of one world: else they are computed,
  // and so is what is larger than that. Keeps the inputs as they are now, whatever becomes of those handles, and of
  // parts that the user has.
  void add(std::shared_ptr<LateCall> call);
  // Somebody is about to write to `t`: calls that read it, or what it is a view of, are computed before.
  void compute_before_write(const at::Tensor& t);
  // Somebody gets parts of that memory, and may write to them at any time. Waits for calls that read them just now.
  void copy_before_unseen_writes(const LocalStorage& memory);
  // All that wait, `call` among them unless it was computed before.
  void compute(const LateCall& call);
  void compute_all() override;
  // Somebody is about to overwrite its result, which is zeros from now on: it is not computed meanwhile, and read as it
  // is. False: it was computed before.
  bool hold_back(LateCall& call);
  void resume(LateCall& call);  // that has failed: it waits again, or gives its error, as before
  void drop(LateCall& call);    // that has been done

 private:
  using ReadsMemory = std::function<bool(const at::Tensor& in)>;  // does who reads `in` read it?

  bool any_reads(const ReadsMemory& reads);  // one that waits or is in hand
  // Those that wait read copies of that memory from now on. REQUIRES: computing_ is locked.
  void copy_inputs(const ReadsMemory& reads);
  // Those that wait, of one world. False: nobody waits. REQUIRES: computing_ is locked.
  bool compute_waiting();

  std::mutex computing_;  // held while calls are computed, or their inputs replaced; before mutex_
  std::mutex mutex_;      // guards the rest, and the inputs of calls. Nobody waits for anything who holds it
  std::vector<std::shared_ptr<LateCall>> waiting_, in_hand_;  // those that are held back wait, too
  int64_t bytes_ = 0;                                         // of those that wait
};

// LateCalls::compute_before_write() of all that are there.
void compute_late_before_write(const at::Tensor& t);

}  // namespace dtensor
