// Low-precision matrix products. Rows and columns may be split; the inner dim is whole, since results are rounded,
// except for integers, which add up exactly.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <utility>

#include "ops/support/core_dims.h"
#include "ops/support/meta_tensor.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// ------------------------------------------------------------ whole numbers

OutputMetas int_mm_metas(const OpCall& call) {
  const Spec &a = *call.inputs[0], &b = *call.inputs[1];
  TORCH_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.sizes()[1] == b.sizes()[0] && a.dtype() == at::kChar &&
                  b.dtype() == at::kChar,
              "_int_mm: expected an int8 matrix [m, k] and one [k, n], but got ", call.to_string());
  return contiguous_metas({a.sizes()[0], b.sizes()[1]}, {at::kInt});
}

// CUDA's kernel needs more than 16 rows, and multiples of 8 columns, which a part may lack; doubles represent sums of
// products of int8 exactly, up to inner dims of 2^38.
void int_mm_local(const LocalCall& local, Stack& stack) {
  Arguments args(local.op, stack);
  const at::Tensor a = args.tensor("self"), b = args.tensor("mat2"), out = args.out();
  const bool fits = a.is_cpu() || (a.size(0) > 16 && a.size(1) % 8 == 0 && b.size(1) % 8 == 0);
  if (fits && a.numel() > 0 && b.numel() > 0) return local.op.callBoxed(stack);
  const at::Tensor product = a.to(at::kDouble).mm(b.to(at::kDouble)).to(at::kInt);
  torch::jit::drop(stack, local.op.schema().arguments().size());
  stack.emplace_back(out.defined() ? out.copy_(product) : product);
}

// ------------------------------------------------------------ scaled

// A scale of one number, or one per row of `self` ([m, 1]), or per column of `mat2` ([1, n]), is split with it.
CoreDims scaled_mm_dims(const OpCall& call) {
  constexpr int kRow = 0, kInner = 1, kColumn = 2;
  const int a = call.input_index("self"), b = call.input_index("mat2"), bias = call.input_index("bias");
  TORCH_CHECK(call.inputs[a]->ndim() == 2 && call.inputs[b]->ndim() == 2, "_scaled_mm: expected two matrices, but got ",
              call.to_string());
  const int64_t m = call.inputs[a]->sizes()[0], n = call.inputs[b]->sizes()[1];
  CoreDims dims;
  for (const SpecPtr& input : call.inputs) dims.rule.inputs.emplace_back(input ? input->ndim() : 0, kNoFactor);
  dims.rule.inputs[a] = {kRow, kInner};
  dims.rule.inputs[b] = {kInner, kColumn};
  dims.rule.outputs = {{kRow, kColumn}};
  dims.rule.need_replication = {kInner};
  // Kernels need columns in multiples of 16.
  if (n % (16 * call.mesh.size()) != 0) dims.rule.need_replication.push_back(kColumn);
  if (bias >= 0 && call.inputs[bias] && call.inputs[bias]->ndim() == 1) dims.rule.inputs[bias] = {kColumn};
  const auto scale = [&](const char* name, size_t dim, int factor, int64_t size) {
    const int i = call.input_index(name);
    const Spec& s = *call.inputs[i];
    if (s.ndim() == 2 && s.sizes()[dim] == size && s.sizes()[1 - dim] == 1) {
      dims.rule.inputs[i][dim] = factor;
    } else if (c10::multiply_integers(s.sizes()) != 1) {
      dims.rule.need_replication = {kRow, kInner, kColumn};  // one per block: all dims whole
    }
  };
  scale("scale_a", 0, kRow, m);
  scale("scale_b", 1, kColumn, n);
  return dims;
}

OutputMetas scaled_mm_metas(const OpCall& call) {
  const Spec &a = *call.input("self"), &b = *call.input("mat2");
  const auto& dtype = call.arg("out_dtype");
  TORCH_CHECK(a.ndim() == 2 && b.ndim() == 2 && a.sizes()[1] == b.sizes()[0],
              "_scaled_mm: mat1 and mat2 shapes cannot be multiplied, in ", call.to_string());
  return contiguous_metas({a.sizes()[0], b.sizes()[1]}, {dtype.isNone() ? a.dtype() : dtype.toScalarType()});
}

// CUDA's kernels need the second factor in column-major order.
void by_columns(const LocalCall&, Arguments& args) {
  const at::Tensor mat2 = args.tensor("mat2");
  if (mat2.stride(0) != 1) args.set("mat2", mat2.t().contiguous().t());
}

const CoreDimsOp kFusedProducts[] = {
    {"aten::_addmm_activation", "n,mK,Kn->mn"},
    {"aten::_weight_int8pack_mm", "mK,nK,n->mn"},
};

}  // namespace

const RuleFamily low_precision_rules("low_precision", [](RuleRegistry& registry) {
  OpRule whole_numbers = factor_op(einsum_rule("mk,kn->mn"));
  whole_numbers.metas = int_mm_metas;
  whole_numbers.local = int_mm_local;
  registry.add("aten::_int_mm", std::move(whole_numbers));
  registry.add("aten::_scaled_mm", core_dims_rule(scaled_mm_dims, scaled_mm_metas, by_columns));
  for (const CoreDimsOp& op : kFusedProducts) add_core_dims(registry, op);
});

}  // namespace dtensor::internal
