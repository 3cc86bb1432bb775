#include "dtensor/dispatch/local_parts.h"

#include <c10/util/Exception.h>

#include <string>

#include "dtensor/dispatch/call_hook.h"
#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

bool has_parts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (!meta.may_need_sync) return true;
  const auto& observer = meta.storage->observer;
  return !(meta.arriving && meta.arriving->needs_all_ranks()) && !(observer && observer->needs_all_ranks());
}

const RankTensors& read_parts(const at::Tensor& t, std::string_view function) {
  TORCH_CHECK(has_parts(t), "[", std::string(function), "] the parts of ", spec_of(t)->to_string(),
              " are not there yet: they are fetched from other ranks when an operator reads the tensor, and reading "
              "parts never communicates. Call fetch_parts(t) on all ranks of ",
              spec_of(t)->mesh().to_string(), " first.");
  return meta_for_read(t).locals;
}

void allow_user_writes(const at::Tensor& t) {
  LocalStorage& storage = *meta_for_read(t).storage;
  storage.user_may_write = true;
  mark_written(storage);
  if (CallHook* hook = CallHook::watching()) hook->before_unseen_writes(storage);
}

void write_parts(c10::ArrayRef<at::Tensor> tensors, std::string_view op, const std::function<void()>& write) {
  for (const at::Tensor& t : tensors) {
    if (CallHook* hook = CallHook::watching(); hook != nullptr && is_dtensor(t)) hook->before_write(t);
  }
  try {
    write();
  } catch (...) {
    for (const at::Tensor& t : tensors) {
      if (is_dtensor(t)) mark_written(*meta_without_sync(t).storage);
    }
    throw;
  }
  for (const at::Tensor& t : tensors) {
    if (is_dtensor(t)) note_write(t, op);
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace dtensor::internal
