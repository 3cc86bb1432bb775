#include "dtensor/dispatch/internal/call_writes.h"

#include "absl/container/flat_hash_map.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

CallWrites::CallWrites(const OpInfo& info, const Inputs& in) : op_(info.name) {
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    if (info.args[in.arg_of[k]].written && in.tensors[k].defined()) tensors_.push_back(in.tensors[k]);
  }
}

void CallWrites::check() const {
  for (const at::Tensor& t : tensors_) check_write(t, op_);
}

bool CallWrites::are_related() const {
  absl::flat_hash_map<const LocalStorage*, const LocalStorage*> first;  // per base: a memory that is a view of it
  for (const at::Tensor& t : tensors_) {
    const LocalStorage* own = meta_without_sync(t).storage.get();
    if (first.try_emplace(memory_viewed_by(t), own).first->second != own) return true;
  }
  return false;
}

void CallWrites::note() const {
  for (const at::Tensor& t : tensors_) note_write(t, op_);
}

void CallWrites::note_failed() const {
  for (const at::Tensor& t : tensors_) mark_written(*meta_without_sync(t).storage);
}

}  // namespace dtensor::internal
