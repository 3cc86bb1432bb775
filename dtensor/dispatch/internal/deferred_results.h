// Results of deferred calls in backward: deferred_gradients.h.
//
// The result exists at once, without memory. Reading it (meta_for_read()) computes it first, in a collective call, and
// so does writing to one of its inputs. Writes by the user to exposed local tensors are not seen: the deferred call
// keeps copies of such inputs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>

#include "comm/comm_work.h"
#include "dtensor/dispatch/internal/deferred_gradients.h"

namespace dtensor::internal {

// Whether the result of a call may be deferred: inputs have to move for it, and only the gradient of `leaf`, which may
// be undefined, needs it.
bool may_defer(const OpInfo& info, const Inputs& in, const Decision& decision, const at::Tensor& leaf);
// The deferred result. REQUIRES: may_defer().
at::Tensor make_deferred_result(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                                std::shared_ptr<const Decision> decision, decltype(DeferredCall::run) run);

// A deferred result that a call overwrites as a whole. It is computed after all if the call fails.
class OverwriteGuard {
 public:
  // Null: `t` is not deferred.
  static std::unique_ptr<OverwriteGuard> of(const at::Tensor& t);
  ~OverwriteGuard();
  OverwriteGuard(const OverwriteGuard&) = delete;
  OverwriteGuard& operator=(const OverwriteGuard&) = delete;

  void done();  // call after it was overwritten

 private:
  OverwriteGuard(c10::intrusive_ptr<c10::BackendMeta> meta, std::shared_ptr<DeferredGradients> calls,
                 std::shared_ptr<DeferredCall> call);
  c10::intrusive_ptr<c10::BackendMeta> meta_;  // of the tensor
  std::shared_ptr<CommWork> arriving_;         // pending work of the result
  std::shared_ptr<DeferredGradients> calls_;
  std::shared_ptr<DeferredCall> call_;
  bool done_ = false;
};

// Called before a call writes to arguments, if it does: computes deferred calls that read them. A deferred result that
// the call overwrites as a whole is suspended instead.
std::unique_ptr<OverwriteGuard> settle_before_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

}  // namespace dtensor::internal
