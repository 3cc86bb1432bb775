#include "checkpoint/serialize_parts.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include "checkpoint/formats/stored_dtypes.h"
#include "comm/scope.h"
#include "dtensor/dispatch/local_parts.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {

void check_can_be_stored(const at::Tensor& t, const std::string& name) {
  TORCH_CHECK_TYPE(
      can_be_stored(t.scalar_type()) && t.layout() == at::kStrided, "[save] ", name.empty() ? "" : "'", name,
      name.empty() ? "a tensor" : "'", " of dtype ", t.scalar_type(), " and layout ", t.layout(),
      " cannot be stored in a file that is read again; convert it before, for instance with to(torch::kInt)"
      " or to_dense()");
}

at::Tensor whole_value(const at::Tensor& t) {
  c10::AutoGradMode no_grad(false);
  at::Tensor value = t;
  if (is_dtensor(t)) {
    const DTensorMeta& meta = meta_for_read(t);
    const World& world = meta.spec->mesh().world();
    TORCH_CHECK_NOT_IMPLEMENTED(!meta.locals.empty() && world.kind() != World::Kind::kFake, "[save] ",
                                meta.spec->to_string(), " cannot be stored: this process lacks values, its world is ",
                                world.name());
    const CommCause cause{"save", meta.name ? *meta.name : "", current_scope().module_path, /*implicit=*/false};
    value = meta_for_read(redistribute_as(t, Placements(meta.spec->mesh().ndim(), Replicate()), cause)).locals.front();
  }
  LocalGuard guard;
  value = value.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
  // A view would drag the memory of its base into the file.
  const bool whole = static_cast<size_t>(value.numel()) * value.element_size() == value.storage().nbytes();
  return whole ? value : value.clone();
}

void copy_into(const at::Tensor& target, const at::Tensor& value) {
  c10::AutoGradMode no_grad(false);
  if (!is_dtensor(target)) {
    target.copy_(is_dtensor(value) ? full_tensor(value) : value);
    return;
  }
  check_write(target, "load");
  const DTensorMeta& meta = meta_for_write(target);
  const at::Tensor laid_out =
      is_dtensor(value) ? redistribute(value, meta.spec->placements())
                        : distribute_tensor(value.detach(), meta.spec->mesh(), meta.spec->placements(), std::nullopt);
  write_parts(target, "load", [&] {
    LocalGuard guard;
    for (size_t i = 0; i < meta.locals.size(); ++i) meta.locals[i].copy_(meta_for_read(laid_out).locals[i]);
  });
}

}  // namespace dtensor::internal
