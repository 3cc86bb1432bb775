#include "dtensor/deferral/deferred_gradients.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "dtensor/dispatch/internal/input_moves.h"
#include "dtensor/gradient_buckets.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// The deferred gradients of all backwards in progress.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<DeferredGradients>> calls;
};
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

std::shared_ptr<DeferredGradients> make_deferred_gradients() {
  const auto calls = std::make_shared<DeferredGradients>();
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto is_gone = [](const std::weak_ptr<DeferredGradients>& other) { return other.expired(); };
  all.calls.erase(std::remove_if(all.calls.begin(), all.calls.end(), is_gone), all.calls.end());
  all.calls.push_back(calls);
  return calls;
}

// A copy of the present parts. REQUIRES: they are available.
at::Tensor copy_of(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  RankTensors parts = meta.locals;
  LocalGuard guard;
  for (at::Tensor& part : parts) part = part.clone();
  return make_dtensor(meta.spec, std::move(parts), meta.name);
}

// A handle of `t` that is independent of later changes to it and to exposed parts.
at::Tensor kept(const at::Tensor& t) {
  const DTensorMeta& meta = meta_for_read(t);
  return meta.storage->user_may_write && !meta.spec->meta().wrapped_number ? copy_of(t) : t.variable_data();
}

// Replaces the memory of `to`, and of its aliases, by that of `from`, or by a copy if that is shared.
void take_over(const at::Tensor& to, at::Tensor from) {
  const bool is_own = has_strides(from, to.strides()) && from.storage_offset() == 0 && from.storage().use_count() == 1;
  if (!is_own) from = at::empty_strided(to.sizes(), to.strides(), from.options()).copy_(from);
  c10::StorageImpl *source = from.storage().unsafeGetStorageImpl(), *memory = to.storage().unsafeGetStorageImpl();
  memory->set_nbytes(source->nbytes());
  memory->set_data_ptr_noswap(source->set_data_ptr(at::DataPtr()));
}

// While calls of a recording are computed, charges their collectives to it: shared by bytes among several calls.
class ChargedMeanwhile {
 public:
  explicit ChargedMeanwhile(const std::vector<std::shared_ptr<DeferredCall>>& calls)
      : sites_(current_dispatch_scope().step_decider) {
    if (sites_ == nullptr) return;
    double bytes = 0;
    for (const auto& call : calls) bytes += static_cast<double>(call->bytes);
    StepDecider::CostShares shares;
    for (const auto& call : calls) {
      if (call->recording != sites_->recording() || call->bytes == 0) continue;
      for (const auto& [number, share] : call->charged)
        shares.push_back({number, share * static_cast<double>(call->bytes) / bytes});
    }
    before_ = sites_->charged();
    sites_->charge(std::move(shares));
  }
  ~ChargedMeanwhile() {
    if (sites_ != nullptr) sites_->charge(std::move(before_));
  }
  ChargedMeanwhile(const ChargedMeanwhile&) = delete;
  ChargedMeanwhile& operator=(const ChargedMeanwhile&) = delete;

 private:
  StepDecider* const sites_;
  StepDecider::CostShares before_;
};

}  // namespace

void DeferredCall::end(std::exception_ptr why_not) {
  computed = why_not == nullptr;
  error = std::move(why_not);
  in = {};
  args.clear();
  run = nullptr;
  leaf.reset();
  if (!computed) return;
  parts.clear();
  watching = nullptr;
}

std::shared_ptr<DeferredGradients> DeferredGradients::of_backward() {
  return std::static_pointer_cast<DeferredGradients>(deferred_work(make_deferred_gradients));
}

std::vector<std::shared_ptr<DeferredGradients>> DeferredGradients::all_backwards() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::vector<std::shared_ptr<DeferredGradients>> result;
  for (const auto& known : all.calls) {
    if (auto calls = known.lock()) result.push_back(std::move(calls));
  }
  return result;
}

void DeferredGradients::add(std::shared_ptr<DeferredCall> call) {
  for (at::Tensor& t : call->in.tensors) {
    if (t.defined()) t = kept(t);
  }
  const World& world = call->in.mesh.world();
  const int64_t limit = gradient_bucket_bytes(world);
  const auto has_room = [&] {
    std::lock_guard lock(mutex_);
    return waiting_.empty() || (bytes_ + call->bytes <= limit && waiting_.front()->in.mesh.world() == world);
  };
  const bool is_large = call->bytes > limit;
  if (!has_room()) compute_all();
  {
    std::lock_guard lock(mutex_);
    bytes_ += call->bytes;
    waiting_.push_back(std::move(call));
  }
  if (is_large) compute_all();
}

void DeferredGradients::compute_before_write(const at::Tensor& t) {
  const auto reads = [memory = memory_viewed_by(t)](const at::Tensor& in) { return memory_viewed_by(in) == memory; };
  if (!any_reads(reads)) return;
  std::lock_guard lock(computing_);
  while (compute_waiting()) {
  }
  copy_inputs(reads);  // a suspended call may still have to be computed
}

void DeferredGradients::copy_before_unseen_writes(const LocalStorage& memory) {
  const auto reads = [&](const at::Tensor& in) { return meta_without_sync(in).storage.get() == &memory; };
  if (!any_reads(reads)) return;
  std::lock_guard lock(computing_);
  copy_inputs(reads);
}

bool DeferredGradients::any_reads(const ReadsMemory& reads) {
  std::lock_guard lock(mutex_);
  const auto does = [&](const std::shared_ptr<DeferredCall>& call) {
    return std::any_of(call->in.tensors.begin(), call->in.tensors.end(),
                       [&](const at::Tensor& in) { return in.defined() && reads(in); });
  };
  return std::any_of(waiting_.begin(), waiting_.end(), does) || std::any_of(in_hand_.begin(), in_hand_.end(), does);
}

void DeferredGradients::copy_inputs(const ReadsMemory& reads) {
  std::vector<std::shared_ptr<DeferredCall>> calls;
  {
    std::lock_guard lock(mutex_);
    calls = waiting_;
  }
  for (const auto& call : calls) {
    for (at::Tensor& in : call->in.tensors) {
      if (!in.defined() || !reads(in)) continue;
      at::Tensor other = copy_of(in);  // the parts are available since add()
      std::lock_guard lock(mutex_);
      std::swap(in, other);
    }
  }
}

void DeferredGradients::compute(const DeferredCall& call) {
  std::lock_guard lock(computing_);
  while (!call.computed && call.error == nullptr && !call.held_back) compute_waiting();
  if (call.error != nullptr) std::rethrow_exception(call.error);
}

void DeferredGradients::compute_all() {
  std::vector<std::shared_ptr<DeferredCall>> computed;
  {
    std::lock_guard lock(computing_);
    while (compute_waiting()) {
    }
    std::lock_guard calls(mutex_);
    computed = std::exchange(computed_, {});
  }
  settle(computed);
}

void DeferredGradients::undo(DeferredCall& call) {
  call.end(std::make_exception_ptr(
      c10::ValueError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                      c10::str(call.info.name,
                               ": this gradient was deferred until the end of a backward() that has failed: it was not "
                               "computed. Call zero_grad(), and backward() again."))));
}

void DeferredGradients::settle(const std::vector<std::shared_ptr<DeferredCall>>& ended) {
  for (const auto& call : ended) {
    const auto work = call->work.lock();
    if (work == nullptr) continue;
    try {
      work->wait();
    } catch (const std::exception&) {
      // Every read of the result throws it again.
    }
  }
}

void DeferredGradients::undo_all() {
  std::vector<std::shared_ptr<DeferredCall>> undone, computed;
  std::vector<Inputs> inputs;       // these are released without a lock
  std::vector<at::Tensor> tensors;  // so are these
  {
    std::lock_guard computing(computing_);
    {
      std::lock_guard lock(mutex_);
      is_undone_ = true;
      computed = std::exchange(computed_, {});
      for (auto& call : std::exchange(waiting_, {})) {
        if (!call->held_back) bytes_ -= call->bytes;
        (call->held_back ? waiting_ : undone).push_back(std::move(call));
      }
    }
    for (const auto& call : undone) {  // no other thread has them any more
      const auto work = call->work.lock();
      at::Tensor& grad = call->leaf.mutable_grad();
      if (work != nullptr && is_dtensor(grad) && meta_without_sync(grad).arriving == work) {
        tensors.push_back(std::exchange(grad, at::Tensor()));
      }
      tensors.push_back(call->leaf);
      inputs.push_back(std::move(call->in));
      undo(*call);
    }
  }
  settle(undone);
  settle(computed);
}

bool DeferredGradients::suspend(DeferredCall& call) {
  std::lock_guard computing(computing_);
  if (call.computed) return false;
  {
    LocalGuard guard;
    for (const at::Tensor& part : call.parts)
      take_over(part, at::empty_strided(part.sizes(), part.strides(), part.options()).zero_());
  }
  std::lock_guard lock(mutex_);
  call.held_back = true;
  return true;
}

void DeferredGradients::resume(DeferredCall& call) {
  std::lock_guard computing(computing_);
  std::lock_guard lock(mutex_);
  call.held_back = false;
  if (!is_undone_ || call.error != nullptr) return;
  remove(call);
  undo(call);
}

void DeferredGradients::remove(const DeferredCall& call) {
  const auto is_it = [&](const auto& other) { return other.get() == &call; };
  if (call.error == nullptr) bytes_ -= call.bytes;
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(), is_it), waiting_.end());
}

void DeferredGradients::drop(DeferredCall& call) {
  std::lock_guard computing(computing_);
  std::lock_guard lock(mutex_);
  remove(call);
  call.held_back = false;
  call.end(nullptr);
}

bool DeferredGradients::compute_waiting() {
  std::vector<std::shared_ptr<DeferredCall>> calls;
  {
    std::lock_guard lock(mutex_);
    for (auto& call : std::exchange(waiting_, {})) {
      const bool is_next = !call->held_back && (calls.empty() || calls[0]->in.mesh.world() == call->in.mesh.world());
      if (is_next) bytes_ -= call->bytes;
      (is_next ? calls : waiting_).push_back(std::move(call));
    }
    in_hand_ = calls;
  }
  if (calls.empty()) return false;
  const auto end = [&](DeferredCall& call, std::exception_ptr why_not) {
    std::lock_guard lock(mutex_);
    call.end(std::move(why_not));
  };
  std::exception_ptr error;
  const ChargedMeanwhile charged(calls);
  try {
    std::vector<InputsOfCall> inputs;
    for (const auto& call : calls) inputs.push_back({call->info, *call->decision, call->in});
    std::vector<std::vector<RankTensors>> moved = move_inputs(inputs);
    for (size_t c = 0; c < calls.size(); ++c) {
      const std::vector<RankTensors> outputs = calls[c]->run(calls[c]->in, calls[c]->args, moved[c]);
      LocalGuard guard;
      for (size_t r = 0; r < outputs[0].size(); ++r) take_over(calls[c]->parts[r], outputs[0][r]);
      end(*calls[c], nullptr);  // its inputs are released, call by call
      moved[c].clear();
    }
  } catch (...) {
    error = std::current_exception();
  }
  for (const auto& call : calls) {
    if (!call->computed) end(*call, error);
  }
  {
    std::lock_guard lock(mutex_);
    in_hand_.clear();
    std::copy_if(calls.begin(), calls.end(), std::back_inserter(computed_), [](const auto& c) { return c->computed; });
  }
  if (error != nullptr) std::rethrow_exception(error);
  return true;
}

}  // namespace dtensor::internal
