// Distances between rows, and renormalized rows: features are whole; rows and batch may be split.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>

#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

OutputMetas pair_metas(const OpCall& call) {
  const Spec& self = *call.input("self");
  TORCH_CHECK(self.ndim() == 2, call.name(), ": 2 dims expected, in ", call.to_string());
  const int64_t n = self.sizes()[0];
  return contiguous_metas({n * (n - 1) / 2}, {self.dtype()});
}

OutputMetas contiguous_self(const OpCall& call) { return metas_of({meta_tensor(*call.input("self")).contiguous()}); }

const CoreDimsOp kDistances[] = {
    {"aten::_cdist_forward", "...pM,...rM->...pr"},
    {"aten::_cdist_backward", "...pr,...pM,...rM,...pr->...pM", "grad"},
    {"aten::_euclidean_dist", "...pM,...rM->...pr"},
    // Between all pairs of rows of one matrix.
    {.op = "aten::_pdist_forward", .equation = "NM->K", .metas = pair_metas},
    {.op = "aten::_pdist_backward", .equation = "K,NM,K->NM", .linear = "grad", .metas = contiguous_self},
};

// Elementwise except for a norm over all dims but one.
CoreDims slices(const OpCall& call, int num_outputs) {
  CoreDims dims{pointwise(call, num_outputs), {}};
  const auto ndim = static_cast<int64_t>(dims.rule.outputs[0].size());
  const int64_t dim = wrap_dim(call.get_int("dim"), ndim);
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != dim) dims.rule.need_replication.push_back(static_cast<int>(d));
  }
  return dims;
}

CoreDims renorm_dims(const OpCall& call) { return slices(call, 1); }

// _weight_norm_interface(v, g, dim) -> w, norms; its backward(grad_w, saved_v, saved_g, saved_norms, dim) -> v, g. g
// and norms have size 1 except along the dim.
CoreDims weight_norm_dims(const OpCall& call) {
  CoreDims dims = slices(call, 2);
  dims.rule.outputs[1] = dims.rule.inputs[call.has_arg("g") ? 1 : 2];
  if (call.has_arg("grad_w")) dims.rule.terms = {{0}};
  return dims;
}

OutputMetas weight_norm_metas(const OpCall& call) {
  const bool backward = call.has_arg("grad_w");
  const at::Tensor v = meta_tensor(*call.inputs[backward ? 1 : 0]).contiguous(),
                   g = meta_tensor(*call.inputs[backward ? 2 : 1]);
  if (backward) return metas_of({v, g.contiguous()});
  // The norms have the layout of g, and are not rounded to half precision.
  const bool widens = at::isReducedFloatingType(g.scalar_type());
  return metas_of({v, at::empty_strided(g.sizes(), g.strides(), widens ? g.options().dtype(at::kFloat) : g.options())});
}

}  // namespace

const RuleFamily distance_rules("distance", [](RuleRegistry& registry) {
  for (const CoreDimsOp& op : kDistances) add_core_dims(registry, op);
  registry.add("aten::renorm", core_dims_rule(renorm_dims, {}));
  for (const char* op : {"aten::_weight_norm_interface", "aten::_weight_norm_interface_backward"})
    registry.add(op, core_dims_rule(weight_norm_dims, weight_norm_metas));
});

}  // namespace dtensor::internal
