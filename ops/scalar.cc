// Operators whose result is no tensor, decided so that all ranks agree.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/all.h>
#include <ATen/ops/any.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isclose.h>

#include "dtensor/dispatch.h"
#include "dtensor/op_info.h"
#include "dtensor/view_origin.h"
#include "mesh/scope.h"
#include "ops/register.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

CommCause cause_of(const c10::OperatorHandle& op, const std::string& argument) {
  return {c10::toString(op.operator_name()), argument, current_scope().module_path, /*implicit=*/true};
}

void check_has_data(const c10::OperatorHandle& op, const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !meta_of(t).locals.empty(), op.operator_name(), ": the value of ", meta_of(t).spec->to_string(),
      " is not known to this process, which owns no rank of the mesh (an abstract world has no data)");
}

// A number that every rank of the mesh has its own of, reduced over all of them.
bool all_true(const DeviceMesh& mesh, const std::vector<bool>& flags, const CommCause& cause) {
  RankTensors locals;
  for (size_t i = 0; i < flags.size(); ++i) {
    LocalGuard guard;
    locals.push_back(
        at::full({}, flags[i] ? 1 : 0, at::TensorOptions(at::kInt).device(mesh.world().device(mesh.local_ranks()[i]))));
  }
  const auto spec =
      Spec::get(mesh, Placements(mesh.ndim(), Partial(ReduceOp::kMin)), absl::Span<const int64_t>(), at::kInt);
  const at::Tensor all =
      redistribute_below_autograd(make_dtensor(spec, std::move(locals)), Placements(mesh.ndim(), Replicate()), cause);
  LocalGuard guard;
  return meta_of(all).locals.front().item<int>() != 0;
}

void item(const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  check_has_data(op, self);
  const at::Tensor whole = redistribute_below_autograd(self, Placements(meta_of(self).spec->mesh().ndim(), Replicate()),
                                                       cause_of(op, "self"));
  LocalGuard guard;
  stack.emplace_back(meta_of(whole).locals.front().item());
}

// Both arguments distributed, on one mesh.
void check_pair(const c10::OperatorHandle& op, at::Tensor& self, at::Tensor& other) {
  for (auto* t : {&self, &other}) {
    if (is_dtensor(*t)) continue;
    const at::Tensor& distributed = t == &self ? other : self;
    TORCH_CHECK(current_scope().implicit_replication || t->dim() == 0, op.operator_name(),
                ": one argument is a plain tensor, the other a distributed one on ",
                meta_of(distributed).spec->mesh().to_string(),
                ". Distribute it first, or compare with full_tensor() of the other.");
    *t = replicate_plain(*t, meta_of(distributed).spec->mesh());
  }
  TORCH_CHECK(meta_of(self).spec->mesh() == meta_of(other).spec->mesh(), op.operator_name(),
              ": the arguments are on different meshes");
}

// Compares parts in the layout of `self` (of `other` if self is Partial; replicated if both are).
void equal(const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor other = torch::jit::pop(stack).toTensor();
  at::Tensor self = torch::jit::pop(stack).toTensor();
  check_pair(op, self, other);
  if (self.sizes() != other.sizes()) {
    stack.emplace_back(false);
    return;
  }
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected all tensors to have one dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type(), " while calling equal");
  check_has_data(op, self);
  const DeviceMesh& mesh = meta_of(self).spec->mesh();
  Placements layout = meta_of(self).spec->placements();
  if (meta_of(self).spec->has_partial()) layout = meta_of(other).spec->placements();
  layout = without_partials(std::move(layout));
  self = redistribute_below_autograd(self, layout, cause_of(op, "self"));
  other = redistribute_below_autograd(other, layout, cause_of(op, "other"));
  std::vector<bool> flags;
  {
    LocalGuard guard;
    for (size_t i = 0; i < meta_of(self).locals.size(); ++i) {
      flags.push_back(at::equal(meta_of(self).locals[i], meta_of(other).locals[i]));
    }
  }
  stack.emplace_back(all_true(mesh, flags, cause_of(op, "")));
}

void allclose(const c10::OperatorHandle& op, Stack& stack) {
  const bool equal_nan = torch::jit::pop(stack).toBool();
  const double atol = torch::jit::pop(stack).toDouble();
  const double rtol = torch::jit::pop(stack).toDouble();
  at::Tensor other = torch::jit::pop(stack).toTensor();
  at::Tensor self = torch::jit::pop(stack).toTensor();
  check_pair(op, self, other);
  stack.emplace_back(at::isclose(self, other, rtol, atol, equal_nan).all().item<bool>());
}

void is_same_size(const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  stack.emplace_back(self.sizes() == other.sizes());
}

// The same memory seen in the same way, on every rank or as one device would have it.
void is_set_to(const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  const bool same = is_dtensor(self) && is_dtensor(other) && memory_viewed_by(self) == memory_viewed_by(other) &&
                    layout_of(self).spec->meta() == layout_of(other).spec->meta() && self.storage_offset() == other.storage_offset();
  stack.emplace_back(same);
}

void is_pinned(const c10::OperatorHandle&, Stack& stack) {
  torch::jit::pop(stack);
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  LocalGuard guard;
  bool pinned = !meta_of(self).locals.empty();
  for (const auto& local : meta_of(self).locals) pinned = pinned && local.is_pinned();
  stack.emplace_back(pinned);
}

void is_all_true(const c10::OperatorHandle&, Stack& stack) {
  stack.emplace_back(torch::jit::pop(stack).toTensor().all());
}
void is_any_true(const c10::OperatorHandle&, Stack& stack) {
  stack.emplace_back(torch::jit::pop(stack).toTensor().any());
}

}  // namespace

void register_scalar_rules(RuleRegistry&) {
  add_handler("aten::_local_scalar_dense", item);
  add_handler("aten::equal", equal);
  add_handler("aten::allclose", allclose);
  add_handler("aten::is_same_size", is_same_size);
  add_handler("aten::is_set_to", is_set_to);
  add_handler("aten::is_pinned", is_pinned);
  add_handler("aten::_is_all_true", is_all_true);
  add_handler("aten::_is_any_true", is_any_true);
}

}  // namespace dtensor
