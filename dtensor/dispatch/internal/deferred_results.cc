#include "dtensor/dispatch/internal/deferred_results.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "comm/comm_work.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/copied_view.h"
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
  void operator()(CommWork* work) const { delete work; }
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

}  // namespace

bool may_defer(const OpInfo& info, const Inputs& in, const Decision& decision, const at::Tensor& leaf) {
  const auto moves = [](const auto& plan) { return plan && !plan->is_local(); };
  return leaf.defined() && !info.is_view && !info.has_outs && in.context.mutable_layouts.empty() &&
         decision.output_counts == std::vector<int>{-1} && decision.outputs[0] &&
         decision.outputs[0]->placements() == spec_of(leaf)->placements() &&
         decision.outputs[0]->sizes() == spec_of(leaf)->sizes() &&
         std::any_of(decision.input_plans.begin(), decision.input_plans.end(), moves) && !leaf.grad().defined() &&
         may_wait_in_bucket();
}

at::Tensor make_deferred_result(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                                std::shared_ptr<const Decision> decision, decltype(DeferredCall::run) run) {
  const SpecPtr spec = decision->outputs[0];
  RankTensors parts;
  const auto ranks = in.mesh.local_ranks();
  for (size_t r = 0; r < ranks.size(); ++r) {
    const auto options = at::TensorOptions(spec->dtype()).device(in.mesh.world().device(ranks[r]));
    parts.push_back(without_memory(spec->local_shape(static_cast<int64_t>(r)), options));
  }
  const int64_t bytes = bytes_of(in, *decision);
  auto call = std::make_shared<DeferredCall>(
      DeferredCall{info, in, args.vec(), std::move(decision), std::move(run), parts, bytes});
  if (const StepDecider* decider = current_dispatch_scope().step_decider) {
    call->recording = decider->recording();
    call->charged = decider->charged();
  }
  for (c10::IValue& arg : call->args) {
    if (arg.isTensor() && arg.toTensor().defined()) arg = at::Tensor();  // replaced by the inputs
  }
  const auto calls = DeferredGradients::of_backward();
  calls->add(call);
  const std::shared_ptr<CommWork> work(CommWork::new_deferred([calls, call] { calls->compute(*call); }),
                                       DeferredTicket{calls, call});
  return make_result(spec, std::move(parts), work);
}

std::unique_ptr<OverwriteGuard> OverwriteGuard::of(const at::Tensor& t) {
  const DeferredTicket* work = deferred_ticket(t);
  if (work == nullptr || !work->calls->suspend(*work->call)) return nullptr;
  return std::unique_ptr<OverwriteGuard>(
      new OverwriteGuard(t.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr(), work->calls, work->call));
}

OverwriteGuard::OverwriteGuard(c10::intrusive_ptr<c10::BackendMeta> meta, std::shared_ptr<DeferredGradients> calls,
                               std::shared_ptr<DeferredCall> call)
    : meta_(std::move(meta)),
      arriving_(static_cast<const DTensorMeta&>(*meta_).arriving),
      calls_(std::move(calls)),
      call_(std::move(call)) {
  set_arriving(*meta_, nullptr);
}

OverwriteGuard::~OverwriteGuard() {
  if (done_) return;
  set_arriving(*meta_, std::move(arriving_));
  calls_->resume(*call_);
}

void OverwriteGuard::done() {
  calls_->drop(*call_);
  done_ = true;
}

std::unique_ptr<OverwriteGuard> settle_before_writes(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (!any_deferred_calls()) return nullptr;
  std::unique_ptr<OverwriteGuard> overwritten;
  for (size_t a = 0; a < args.size(); ++a) {
    if (!info.args[a].written) continue;
    any_tensor(args[a], [&](const at::Tensor& t) {
      if (!is_dtensor(t)) return false;
      if (overwrites(info, args, a)) overwritten = OverwriteGuard::of(t);
      compute_deferred_before_write(t);
      return false;
    });
  }
  return overwritten;
}

}  // namespace dtensor::internal
