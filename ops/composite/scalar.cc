// Operators whose result is a number or bool, decided so that all ranks agree.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/all.h>
#include <ATen/ops/any.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isclose.h>

#include <algorithm>

#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

void check_has_data(const c10::OperatorHandle& op, const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !meta_without_sync(t).locals.empty(), op.operator_name(), ": the value of ", spec_of(t)->to_string(),
      " is not known to this process, which owns no rank of the mesh (an abstract world has no data)");
}

// Whether a flag is true on all ranks; each rank has its own, one per part in `layout`: replicas have equal ones.
bool all_true(const DeviceMesh& mesh, const Placements& layout, const std::vector<bool>& flags,
              const CommCause& cause) {
  RankTensors locals;
  for (size_t i = 0; i < flags.size(); ++i) {
    LocalGuard guard;
    locals.push_back(
        at::full({}, flags[i] ? 1 : 0, at::TensorOptions(at::kInt).device(mesh.world().device(mesh.local_ranks()[i]))));
  }
  Placements differ = layout;
  for (Placement& p : differ) p = p.is_replicate() ? Replicate() : Partial(ReduceOp::kMin);
  const auto spec = Spec::get(mesh, differ, absl::Span<const int64_t>(), at::kInt);
  const at::Tensor all =
      redistribute_below_autograd(make_dtensor(spec, std::move(locals)), Placements(mesh.ndim(), Replicate()), cause);
  LocalGuard guard;
  return meta_for_read(all).locals.front().item<int>() != 0;
}

void item(const c10::OperatorHandle& op, Stack& stack) {
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  check_has_data(op, self);
  const at::Tensor known = find_reduced_copy(self);
  if (known.defined() && reports_reuse()) report_reduced_copy(call_cause(op, "self", self), self);
  const at::Tensor whole =
      redistribute_below_autograd(known.defined() ? known : self, Placements(spec_of(self)->mesh().ndim(), Replicate()),
                                  call_cause(op, "self", self));
  LocalGuard guard;
  stack.emplace_back(meta_for_read(whole).locals.front().item());
}

// Both arguments distributed, on one mesh.
void check_pair(const c10::OperatorHandle& op, at::Tensor& self, at::Tensor& other) {
  for (auto* t : {&self, &other}) {
    if (is_dtensor(*t)) continue;
    const at::Tensor& distributed = t == &self ? other : self;
    const DeviceMesh& mesh = spec_of(distributed)->mesh();
    if (!plain_is_replicated() && !counts_as_number(*t)) {
      throw_plain_beside_distributed(c10::toString(op.operator_name()), t == &self ? "self" : "other", *t, mesh);
    }
    *t = replicate_plain(*t, mesh);
  }
  TORCH_CHECK(spec_of(self)->mesh() == spec_of(other)->mesh(), op.operator_name(),
              ": the arguments are on different meshes");
}

bool are_one_tensor(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (meta_without_sync(a).storage != meta_without_sync(b).storage || spec_of(a) != spec_of(b)) return false;
  LocalGuard guard;
  for (size_t i = 0; i < meta_without_sync(a).locals.size(); ++i) {
    if (!meta_for_write(a).locals[i].is_set_to(meta_for_write(b).locals[i])) return false;
  }
  return true;
}

// Without data, as in an abstract world, two different tensors count as unequal: attention tests in this way whether
// its inputs are the same. Otherwise compares parts in the layout of `self` (of `other` if self is Partial; replicated
// if both are). A tensor equals itself unless it has a NaN somewhere: all ranks must agree on that, which takes no
// communication if this process owns them all.
void equal(const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor other = torch::jit::pop(stack).toTensor();
  at::Tensor self = torch::jit::pop(stack).toTensor();
  check_pair(op, self, other);
  if (self.sizes() != other.sizes()) {
    stack.emplace_back(false);
    return;
  }
  const DeviceMesh& mesh = spec_of(self)->mesh();
  const bool is_one = are_one_tensor(self, other);
  if (!mesh.world().has_data()) {
    stack.emplace_back(is_one);
    return;
  }
  check_has_data(op, self);
  if (is_one && c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
    stack.emplace_back(true);
    return;
  }
  Placements layout = spec_of(self)->placements();
  if (spec_of(self)->has_partial()) layout = spec_of(other)->placements();
  layout = without_partials(std::move(layout));
  self = redistribute_below_autograd(self, layout, call_cause(op, "self", self));
  other = is_one ? self : redistribute_below_autograd(other, layout, call_cause(op, "other", other));
  std::vector<bool> flags;
  {
    LocalGuard guard;
    for (size_t i = 0; i < meta_for_read(self).locals.size(); ++i) {
      flags.push_back(at::equal(meta_for_read(self).locals[i], meta_for_read(other).locals[i]));
    }
  }
  const bool knows_all = is_one && static_cast<int64_t>(flags.size()) == mesh.size();
  stack.emplace_back(knows_all ? std::find(flags.begin(), flags.end(), false) == flags.end()
                               : all_true(mesh, layout, flags, call_cause(op, "", self)));
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

// Whether both are the same view of the same memory, on every rank or as a single device would have it.
void is_set_to(const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor other = torch::jit::pop(stack).toTensor();
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  const bool same = is_dtensor(self) && is_dtensor(other) && memory_viewed_by(self) == memory_viewed_by(other) &&
                    spec_of(self)->meta() == spec_of(other)->meta() && self.storage_offset() == other.storage_offset();
  stack.emplace_back(same);
}

void is_pinned(const c10::OperatorHandle&, Stack& stack) {
  torch::jit::pop(stack);
  const at::Tensor self = torch::jit::pop(stack).toTensor();
  LocalGuard guard;
  bool pinned = !meta_for_write(self).locals.empty();
  for (const auto& local : meta_for_write(self).locals) pinned = pinned && local.is_pinned();
  stack.emplace_back(pinned);
}

void is_all_true(const c10::OperatorHandle&, Stack& stack) {
  stack.emplace_back(torch::jit::pop(stack).toTensor().all());
}
void is_any_true(const c10::OperatorHandle&, Stack& stack) {
  stack.emplace_back(torch::jit::pop(stack).toTensor().any());
}

}  // namespace

const RuleFamily scalar_rules("scalar", [](RuleRegistry& registry) {
  registry.add_handler("aten::_local_scalar_dense", item);
  registry.add_handler("aten::equal", equal);
  registry.add_handler("aten::allclose", allclose);
  registry.add_handler("aten::is_same_size", is_same_size);
  registry.add_handler("aten::is_set_to", is_set_to);
  registry.add_handler("aten::is_pinned", is_pinned);
  registry.add_handler("aten::_is_all_true", is_all_true);
  registry.add_handler("aten::_is_any_true", is_any_true);
});

}  // namespace dtensor::internal
