#include "dtensor/dispatch/write_parts.h"

#include "dtensor/dispatch/call_hook.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

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
