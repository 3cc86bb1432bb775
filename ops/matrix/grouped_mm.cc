// Products of groups of matrices, used by mixture-of-experts layers (_grouped_mm). The dim that `offs` divides into
// groups (rows, columns, or the inner dim) is whole. Experts may be sharded: each rank computes the rows of its own
// experts, and leaves zeros in the others.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "propagation/op_call.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Indices of the tensors among OpCall::inputs.
constexpr int kSelf = 0, kMat2 = 1, kOffs = 2, kBias = 3;

OutputMetas grouped_mm_metas(const OpCall& call) {
  const Spec &a = *call.inputs[kSelf], &b = *call.inputs[kMat2];
  const bool has_offs = call.inputs[kOffs] != nullptr;
  TORCH_CHECK((a.ndim() == 2 || a.ndim() == 3) && (b.ndim() == 2 || b.ndim() == 3) &&
                  a.sizes().back() == b.sizes()[b.ndim() - 2],
              "_grouped_mm: matrices, or batches of them, whose inner dims are alike are expected, but got ",
              call.to_string());
  TORCH_CHECK(
      has_offs == (a.ndim() == 2 || b.ndim() == 2),
      "_grouped_mm: argument 'offs' belongs to exactly those products that have a matrix for an operand, but got ",
      call.to_string());
  for (const Spec* t : {&a, &b}) {
    TORCH_CHECK(!has_offs || t->ndim() == 2 || t->sizes()[0] == call.inputs[kOffs]->sizes()[0],
                "_grouped_mm: argument 'offs' should have one element for each matrix of a batch, but got ",
                call.to_string());
  }
  const auto& dtype = call.arg("out_dtype");
  std::vector<int64_t> sizes;
  if (a.ndim() == 2 && b.ndim() == 2) sizes.push_back(call.inputs[kOffs]->sizes()[0]);
  if (a.ndim() == 3 && b.ndim() == 3) sizes.push_back(a.sizes()[0]);
  sizes.push_back(a.sizes()[a.ndim() - 2]);
  sizes.push_back(b.sizes().back());
  return contiguous_metas(sizes, {dtype.isNone() ? a.dtype() : dtype.toScalarType()});
}

std::vector<DimStrategy> grouped_mm_strategies(const OpCall& call, int64_t) {
  const int64_t a = call.inputs[kSelf]->ndim(), b = call.inputs[kMat2]->ndim();
  const int64_t rows = a - 2, columns = b - 1, out = a == b ? 3 : 2;
  const Placement r = Replicate();
  std::vector<DimStrategy> result;
  const auto add = [&](const Placement& output, const Placement& self, const Placement& mat2, const Placement& bias) {
    result.push_back({{output}, Placements(call.inputs.size(), r)});
    result.back().inputs[kSelf] = self;
    result.back().inputs[kMat2] = mat2;
    if (kBias < static_cast<int>(call.inputs.size())) result.back().inputs[kBias] = bias;
  };
  add(r, r, r, r);
  if (a == 3 && b == 3) add(Shard(0), Shard(0), Shard(0), Shard(0));  // a batch of products
  // Rows of the result, unless they are grouped; columns likewise.
  if (!(a == 2 && b == 3)) add(Shard(out - 2), Shard(rows), r, r);
  if (!(a == 3 && b == 2)) add(Shard(out - 1), r, Shard(columns), call.inputs[kBias] ? Shard(1) : r);
  if (call.inputs[kBias]) return result;  // would be added once per rank
  if (!(a == 2 && b == 2)) add(Partial(), Shard(a - 1), Shard(b - 2), r);
  if (a == 2 && b == 3) add(Partial(), r, Shard(0), r);  // the experts
  if (a == 3 && b == 2) add(Partial(), Shard(0), r, r);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
    add(Partial(op), Partial(op), r, r);
    add(Partial(op), r, Partial(op), r);
  }
  return result;
}

// Kernels need strides in multiples of 16 bytes.
bool is_aligned(const at::Tensor& t) {
  if (t.numel() == 0) return false;
  const auto element = static_cast<int64_t>(t.element_size());
  int64_t ones = 0;
  for (int64_t d = t.dim() - 2; d < t.dim(); ++d) {
    if (t.stride(d) == 1) {
      ++ones;
    } else if (t.stride(d) * element % 16 != 0) {
      return false;
    }
  }
  return ones == 1;
}

// Computes the products one after the other, for the groups `own` whose matrices this rank has.
void add_groups(at::Tensor result, const at::Tensor& a, const at::Tensor& b, const at::Tensor& offs,
                const at::Tensor& bias, const IndexRanges& own) {
  const at::Tensor ends = offs.defined() ? offs.cpu().to(at::kLong) : at::Tensor();
  const auto matrix = [](const at::Tensor& t, int64_t i) { return t.dim() == 3 ? t[i] : t; };
  int64_t i = 0;  // index among the local matrices
  for (const IndexRange& run : own) {
    for (int64_t g = run.begin; g < run.begin + run.size; ++g, ++i) {
      at::Tensor x = matrix(a, i), y = matrix(b, i), z = matrix(result, i);
      if (ends.defined()) {
        const int64_t begin = g == 0 ? 0 : ends[g - 1].item<int64_t>(), count = ends[g].item<int64_t>() - begin;
        if (a.dim() == 2) x = x.narrow(b.dim() == 3 ? 0 : 1, begin, count);
        if (b.dim() == 2) y = y.narrow(a.dim() == 3 ? 1 : 0, begin, count);
        if (result.dim() == 2) z = z.narrow(a.dim() == 3 ? 1 : 0, begin, count);
      }
      z.copy_(at::matmul(x, y));
      if (bias.defined()) z.add_(bias[g]);
    }
  }
}

void grouped_mm_local(const LocalCall& call, Stack& stack) {
  const Arguments args(call.op, stack);
  const at::Tensor a = args.tensor("self"), b = args.tensor("mat2");
  const at::Tensor offs = args["offs"].isTensor() ? args.tensor("offs") : at::Tensor(),
                   bias = args["bias"].isTensor() ? args.tensor("bias") : at::Tensor();
  const Spec& result_spec = *call.outputs[0];
  IndexRanges own = {{0, offs.defined() ? offs.size(0) : a.size(0)}};
  for (const int i : {kSelf, kMat2}) {
    if (offs.defined() && call.inputs[i]->ndim() == 3) own = call.inputs[i]->local_layout(call.i).dims[0];
  }
  const bool all = !offs.defined() || total_size(own) == offs.size(0);
  if (all && is_aligned(a) && is_aligned(b)) return call.op.callBoxed(stack);
  const Shape sizes = result_spec.local_shape(call.i);
  const at::Tensor result =
      at::zeros(c10::IntArrayRef(sizes.data(), sizes.size()), a.options().dtype(result_spec.dtype()));
  if (!a.is_meta()) add_groups(result, a, b, offs, bias, own);
  torch::jit::drop(stack, call.op.schema().arguments().size());
  stack.emplace_back(result);
}

// Two operations per added product: each row of a group is multiplied by only one matrix.
double grouped_mm_flops(const std::vector<Shape>& inputs) {
  const Shape &a = inputs[kSelf], &b = inputs[kMat2];
  double n = 2.0 * static_cast<double>(a[a.size() - 2]) * static_cast<double>(a.back()) * static_cast<double>(b.back());
  if (a.size() == 3) n *= static_cast<double>(b.size() == 3 ? a[0] : 1);
  return n;
}

}  // namespace

const RuleFamily grouped_mm_rules("grouped_mm", [](RuleRegistry& registry) {
  OpRule rule;
  rule.per_dim = grouped_mm_strategies;
  rule.metas = grouped_mm_metas;
  rule.local = grouped_mm_local;
  rule.flops = [](const OpCall&) { return grouped_mm_flops; };
  registry.add("aten::_grouped_mm", rule);
});

}  // namespace dtensor::internal
