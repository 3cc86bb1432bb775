#include "dtensor/dispatch/internal/call_writes.h"

#include <c10/util/Exception.h>

#include "absl/container/flat_hash_map.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

CallWrites::CallWrites(const OpInfo& info, const Inputs& in) : info_(info) {
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (info.args[in.arg_of[k]].written && in.tensors[k].defined()) tensors_.push_back(in.tensors[k]);
  }
  if (!in.observed) return;
  for (const at::Tensor& t : tensors_) check_write(t, info.name);
}

CallWrites::~CallWrites() {
  if (!begun_) return;
  for (const at::Tensor& t : tensors_) mark_written(*meta_without_sync(t).storage);
}

bool CallWrites::are_related() const {
  absl::flat_hash_map<const LocalStorage*, const LocalStorage*> first;  // per base: a memory that is a view of it
  for (const at::Tensor& t : tensors_) {
    const LocalStorage* own = meta_without_sync(t).storage.get();
    if (first.try_emplace(memory_viewed_by(t), own).first->second != own) return true;
  }
  return false;
}

void CallWrites::done() {
  begun_ = false;
  for (const at::Tensor& t : tensors_) note_write(t, info_.name);
}

void run_one_by_one(const OpInfo& info, torch::jit::Stack& stack) {
  count_otherwise();
  constexpr auto kSlow = c10::DispatchKey::CompositeExplicitAutograd;
  TORCH_CHECK_NOT_IMPLEMENTED(info.op.hasKernelForDispatchKey(kSlow), info.name,
                              ": writes to several views of one distributed tensor "
                              "whose parts had to move for them. Write to them one after another.");
  info.op.callBoxedForDispatchKey(kSlow, stack);
}

}  // namespace dtensor::internal
