// Results of calls in backward that are computed later: deferred_gradients.h. Internal.
//
// The result is there at once, without memory: who reads it (meta_of()) has it computed before, in a collective call,
// and so has who writes to what it is computed of, wherever that is. What is written unseen is not waited for: of
// tensors whose parts the user holds, or gets, copies are kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "comm/comm_work.h"
#include "dtensor/dispatch/internal/deferred_gradients.h"

namespace dtensor {

// May the result of a call wait for others, as inputs have to move for it and nobody but the gradient of `leaf`, which
// may be undefined, wants it?
bool may_come_late(const OpInfo& info, const Inputs& in, const Decision& decision, const at::Tensor& leaf);
// That result. REQUIRES: may_come_late().
at::Tensor make_late_result(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                            std::shared_ptr<const Decision> decision, decltype(LateCall::run) run);

// A late result that a call overwrites as a whole. It is computed after all if the call fails.
class OverwrittenResult {
 public:
  // Null: `t` is not late.
  static std::unique_ptr<OverwrittenResult> of(const at::Tensor& t);
  ~OverwrittenResult();
  OverwrittenResult(const OverwrittenResult&) = delete;
  OverwrittenResult& operator=(const OverwrittenResult&) = delete;

  void done();  // the call has overwritten it

 private:
  OverwrittenResult(c10::intrusive_ptr<c10::BackendMeta> meta, std::shared_ptr<LateCalls> calls,
                    std::shared_ptr<LateCall> call);
  c10::intrusive_ptr<c10::BackendMeta> meta_;  // of the tensor
  std::shared_ptr<CommWork> arriving_;         // what it waited for
  std::shared_ptr<LateCalls> calls_;
  std::shared_ptr<LateCall> call_;
  bool done_ = false;
};

// A call is about to write to some of its arguments, if to any: what is late and is computed of them is computed
// before, but not what it overwrites as a whole, if it does.
std::unique_ptr<OverwrittenResult> settle_before_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor
