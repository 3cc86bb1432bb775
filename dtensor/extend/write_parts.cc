#include "dtensor/extend/write_parts.h"

#include "dtensor/extend/reduced_forms.h"
#include "dtensor/extend/representation.h"
#include "dtensor/internal/late_calls.h"

namespace dtensor {
namespace {

void compute_late_before(c10::ArrayRef<at::Tensor> tensors) {
  if (!any_late_calls()) return;
  for (const auto& calls : LateCalls::everywhere()) {
    for (const at::Tensor& t : tensors) {
      if (is_dtensor(t)) calls->compute_before_write(t);
    }
  }
}

}  // namespace

void write_parts(c10::ArrayRef<at::Tensor> tensors, std::string_view op, const std::function<void()>& write) {
  compute_late_before(tensors);
  try {
    write();
  } catch (...) {
    for (const at::Tensor& t : tensors) {
      if (is_dtensor(t)) count_write(*peek_meta(t).storage);
    }
    throw;
  }
  for (const at::Tensor& t : tensors) {
    if (is_dtensor(t)) note_write(t, op);
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace dtensor
