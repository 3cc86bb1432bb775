// A plain tensor in the place of a distributed one. torch::load() into a distributed module does so without a word: every
// parameter would be whole and plain on every rank. LibTorch asks of both tensors before.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_has_compatible_shallow_copy_type_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "dtensor/above_autograd_key.h"
#include "dtensor/representation.h"

namespace dtensor {
namespace {

constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kAboveAutogradKey);

// The library itself does so while it saves and loads: inside of a LocalGuard.
bool has_compatible_type(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& from) {
  if (is_dtensor(self) && !is_dtensor(from) && !c10::impl::tls_is_dispatch_key_excluded(kDTensorKey)) {
    const DTensorMeta& meta = layout_of(self);
    TORCH_CHECK(false, "[set_data] a plain tensor of shape ", from.sizes(), " cannot take the place of ",
                meta.name ? "'" + *meta.name + "', " : "", "a distributed tensor ", meta.spec->to_string(),
                ". Instead of torch::load() call dtensor::load(module, path), which keeps the layouts, or "
                "dtensor::load_state_dict(module, values) for plain values at hand; or distribute the tensor first: "
                "distribute_tensor(t, mesh, placements).");
  }
  return at::_ops::_has_compatible_shallow_copy_type::redispatch(keys & kBelow, self, from);
}

}  // namespace
}  // namespace dtensor

TORCH_LIBRARY_IMPL(aten, DeferredInit, m) { m.impl("_has_compatible_shallow_copy_type", &dtensor::has_compatible_type); }
