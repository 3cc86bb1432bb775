// Fourier transforms: linear, the transformed dims whole. Where one of these is split and another dim is not, the ranks
// exchange parts (an all-to-all) rather than gather the tensor.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resolve_conj.h>

#include <algorithm>

#include "dtensor/extend/dispatch.h"
#include "dtensor/extend/representation.h"
#include "ops/core_dims.h"
#include "ops/meta_tensor.h"
#include "propagation/trial_run.h"

namespace dtensor {
namespace {

CoreDims transform_dims(const OpCall& call) {
  CoreDims dims{pointwise(call), {}};
  const auto transformed = *call.get_ints("dim");
  for (const int64_t d : transformed)
    dims.rule.blocked.push_back(static_cast<int>(wrap_dim(d, call.input("self")->ndim())));
  dims.rule.terms = {{0}};
  return dims;
}

// Of two elements along every dim, which lie in the order of those of `self`.
at::Tensor small_like(const Spec& self) {
  const std::vector<int64_t> sizes(self.ndim(), 2);
  std::vector<int64_t> order, strides(self.ndim());
  for (int64_t d = 0; d < self.ndim(); ++d) order.push_back(d);
  // Of equal strides the last dim comes first.
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return self.strides()[a] != self.strides()[b] ? self.strides()[a] < self.strides()[b] : a > b;
  });
  int64_t stride = 1;
  for (const int64_t d : order) {
    strides[d] = stride;
    stride *= 2;
  }
  return at::empty_strided(sizes, strides, at::TensorOptions(self.dtype())).zero_();
}

// In memory the transformed dims come last, in an order that is the kernel's affair: a transform of two elements along
// every dim tells.
OutputMetas transform_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  const auto dims = *call.get_ints("dim");
  const bool to_real = call.has_arg("last_dim_size");
  OpCall small = call;
  if (to_real) small.args[call.arg_index("last_dim_size")] = 2;
  OutputMetas metas = read_metas(run_on(small, c10::DeviceType::CPU, [&](int) { return small_like(self); }));
  TensorMeta& result = metas.tensors.at(0).value();
  result.sizes = self.sizes();
  if (!dims.empty()) {
    int64_t& last = result.sizes[wrap_dim(dims.back(), self.ndim())];
    if (to_real) last = call.get_int("last_dim_size");
    if (call.has_arg("onesided") && call.get_bool("onesided")) last = last / 2 + 1;
  }
  const auto strides = local_strides(result.sizes, result.strides);
  result.strides.assign(strides.begin(), strides.end());
  return metas;
}

// ATen makes a copy without gaps of what is conjugated before it calls the kernel, which looks at strides.
void resolve_conj_first(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  c10::IValue& self = torch::jit::peek(stack, 0, op.schema().arguments().size());
  if (lazy_bits(peek_meta(self.toTensor()).locals).conj) self = at::resolve_conj(self.toTensor());
  dispatch_by_rule(op, stack);
}

}  // namespace

const RuleFamily fourier_rules("fourier", [](RuleRegistry& registry) {
  for (const char* op : {"aten::_fft_c2c", "aten::_fft_r2c", "aten::_fft_c2r"}) {
    registry.add(op, core_dims_rule(transform_dims, transform_metas));
    registry.add_handler(op, resolve_conj_first);
  }
});

}  // namespace dtensor
