// Defers calls of operators, and computes them when their inputs or results are written.
#include <ATen/ops/empty.h>

#include <memory>
#include <utility>

#include "comm/comm_work.h"
#include "dtensor/deferral/deferred_gradients.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"
#include "plan/largest_part.h"
#include "plan/redistribute_plan.h"

namespace dtensor::internal {
namespace {

// Bytes that the inputs hold, and need after redistribution: of the largest parts.
int64_t bytes_of(const Inputs& in, const Decision& decision) {
  int64_t bytes = 0;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (!in.tensors[k].defined()) continue;
    if (const auto& plan = decision.input_plans[k]) {
      bytes += largest_part_bytes(plan->tensor, plan->from) + largest_part_bytes(plan->tensor, plan->to);
    } else {
      bytes += spec_of(in.tensors[k])->max_local_bytes();
    }
  }
  return bytes;
}

// The deleter of a deferred result's pending work; it also stores which call the result belongs to.
struct DeferredTicket {
  std::shared_ptr<DeferredGradients> calls;
  std::shared_ptr<DeferredCall> call;
  void operator()(CommWork* work) {
    delete work;
    call = nullptr;  // its weak pointer to the work keeps this deleter
    calls = nullptr;
  }
};

// Null: `t` is not deferred, or not the whole result of a call.
const DeferredTicket* deferred_ticket(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (!meta.arriving || meta.arriving->done()) return nullptr;
  const auto* work = std::get_deleter<DeferredTicket>(meta.arriving);
  return work != nullptr && meta.spec == work->call->decision->outputs[0] && t.storage_offset() == 0 ? work : nullptr;
}

// Threads that wait for `meta` would otherwise wait again: while its locals are being overwritten, no thread waits for
// them.
void set_arriving(c10::BackendMeta& meta, std::shared_ptr<CommWork> work) {
  auto& of_tensor = static_cast<DTensorMeta&>(meta);
  of_tensor.may_need_sync = work != nullptr;
  of_tensor.arriving = std::move(work);
}

// Whether the call overwrites all of argument `a`, without reading it. Not if it may fail, for example because of
// sizes.
bool overwrites(const OpInfo& info, c10::ArrayRef<c10::IValue> args, size_t a) {
  if (!info.args[a].overwritten || info.args[a].out || !args[a].isTensor()) return false;
  const at::Tensor& t = args[a].toTensor();
  for (size_t b = 0; b < args.size(); ++b) {
    if (b == a || !args[b].isTensor() || !args[b].toTensor().defined()) continue;
    const at::Tensor& from = args[b].toTensor();
    if (!is_dtensor(from) || from.sizes() != t.sizes() || !(spec_of(from)->mesh() == spec_of(t)->mesh()) ||
        memory_viewed_by(from) == memory_viewed_by(t))
      return false;
  }
  return true;
}

// Whether the result may be deferred: inputs have to move for it, and only the gradient of the leaf needs it. The leaf
// is known in the backward of embedding() and embedding_bag() alone (OpRule::uses_gradient_target).
bool may_defer(const CallHook::GradientCall& call) {
  const Decision& decision = *call.decision;
  return !call.info.is_view && !call.info.has_outs && call.in.context.mutable_layouts.empty() &&
         decision.output_counts == std::vector<int>{-1} && decision.outputs[0] &&
         decision.outputs[0]->placements() == spec_of(call.leaf)->placements() &&
         decision.outputs[0]->sizes() == spec_of(call.leaf)->sizes() && decision.communicates() &&
         !call.leaf.grad().defined() && may_wait_in_bucket();
}

// A dense tensor, its dims in the order in memory that `strides` have, whose memory is null until its call is computed.
// Views of it can be taken before.
at::Tensor without_memory(const Shape& sizes, c10::IntArrayRef strides, const at::TensorOptions& options) {
  LocalGuard guard;
  const at::Tensor t = at::empty({0}, options);
  t.unsafeGetTensorImpl()->set_sizes_and_strides({sizes.data(), sizes.size()}, dense_in_order_of(strides, sizes));
  t.storage().unsafeGetStorageImpl()->set_nbytes(static_cast<size_t>(t.numel()) * t.element_size());
  return t;
}

// A deferred result that a call overwrites as a whole. It is computed after all if the call fails.
class OverwriteGuard {
 public:
  // REQUIRES: suspend() was true.
  OverwriteGuard(const at::Tensor& t, const DeferredTicket& work)
      : meta_(t.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr()),
        arriving_(meta_without_sync(t).arriving),
        work_(work) {
    set_arriving(*meta_, nullptr);
  }
  ~OverwriteGuard() {
    if (done_) return;
    set_arriving(*meta_, std::move(arriving_));
    work_.calls->resume(*work_.call);
  }
  OverwriteGuard(const OverwriteGuard&) = delete;
  OverwriteGuard& operator=(const OverwriteGuard&) = delete;

  void done() {
    work_.calls->drop(*work_.call);
    done_ = true;
  }

 private:
  const c10::intrusive_ptr<c10::BackendMeta> meta_;  // of the tensor
  std::shared_ptr<CommWork> arriving_;               // pending work of the result
  const DeferredTicket work_;
  bool done_ = false;
};

class DeferralHook final : public CallHook {
 public:
  at::Tensor defer(const GradientCall& call) override {
    if (!may_defer(call)) return {};
    const SpecPtr& spec = call.decision->outputs[0];
    const DeviceMesh& mesh = call.in.mesh;
    RankTensors parts;
    for (size_t r = 0; r < mesh.local_ranks().size(); ++r) {
      const auto options = at::TensorOptions(spec->dtype()).device(mesh.world().device(mesh.local_ranks()[r]));
      parts.push_back(without_memory(spec->local_shape(static_cast<int64_t>(r)), spec->strides(), options));
    }
    auto deferred =
        std::make_shared<DeferredCall>(DeferredCall{call.info, call.in, call.args.vec(), call.decision, call.run, parts,
                                                    call.leaf, bytes_of(call.in, *call.decision)});
    if (const StepDecider* decider = current_dispatch_scope().step_decider) {
      deferred->recording = decider->recording();
      deferred->charged = decider->charged();
    }
    for (c10::IValue& arg : deferred->args) {
      if (arg.isTensor() && arg.toTensor().defined()) arg = at::Tensor();  // replaced by the inputs
    }
    const auto calls = DeferredGradients::of_backward();
    calls->add(deferred);
    const std::shared_ptr<CommWork> work(CommWork::new_deferred([calls, deferred] { calls->compute(*deferred); }),
                                         DeferredTicket{calls, deferred});
    deferred->work = work;
    return make_result(spec, std::move(parts), work);
  }

  // Computes deferred calls that read the written arguments. A deferred result that the call overwrites as a whole is
  // suspended instead.
  std::function<void()> before_call(const OpInfo& info, c10::ArrayRef<c10::IValue> args) override {
    std::shared_ptr<OverwriteGuard> overwritten;
    for (size_t a = 0; a < args.size(); ++a) {
      if (!info.args[a].written) continue;
      any_tensor(args[a], [&](const at::Tensor& t) {
        if (!is_dtensor(t)) return false;
        const DeferredTicket* work = overwrites(info, args, a) ? deferred_ticket(t) : nullptr;
        if (work != nullptr && work->calls->suspend(*work->call))
          overwritten = std::make_shared<OverwriteGuard>(t, *work);
        before_write(t);
        return false;
      });
    }
    if (!overwritten) return nullptr;
    return [overwritten] { overwritten->done(); };
  }

  void before_write(const at::Tensor& t) override {
    for (const auto& calls : DeferredGradients::all_backwards()) calls->compute_before_write(t);
  }

  void before_unseen_writes(const LocalStorage& memory) override {
    for (const auto& calls : DeferredGradients::all_backwards()) calls->copy_before_unseen_writes(memory);
  }
};

const bool hook_registered = (CallHook::registered = new DeferralHook, true);  // for the life of the process

}  // namespace
}  // namespace dtensor::internal
