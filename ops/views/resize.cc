// Operators that change a tensor's sizes or memory, defined by their effect on the whole tensor, with its elements in
// the order of its strides.
#include <ATen/TensorOperators.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/factories.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// The layout of `self`, for the dims that still exist.
Placements kept_placements(const at::Tensor& self, int64_t ndim) {
  Placements placements = spec_of(self)->placements();
  for (Placement& p : placements) {
    if (p.is_partial() || (p.is_sharded() && p.dim() >= ndim)) p = Replicate();
  }
  return placements;
}

void resize_to(const c10::OperatorHandle& op, const at::Tensor& self, const std::vector<int64_t>& sizes) {
  if (self.sizes() == c10::IntArrayRef(sizes)) return;
  const Spec& spec = *spec_of(self);
  for (const int64_t size : sizes)
    TORCH_CHECK(size >= 0, op.operator_name(), ": sizes must not be negative, but got ", c10::IntArrayRef(sizes));
  TORCH_CHECK_NOT_IMPLEMENTED(is_dense(spec.meta()), op.operator_name(), ": argument 'self', of shape ", self.sizes(),
                              " and strides ", self.strides(),
                              ", is a view with gaps between its elements. Resize a clone() of it.");
  const int64_t before = self.numel(), after = c10::multiply_integers(sizes);
  at::Tensor flat =
      self.is_contiguous() ? self.view({before}) : at::as_strided(self, {before}, {1}, self.storage_offset());
  if (after <= before) return share_contents(self, flat.narrow(0, 0, after).view(sizes));
  // New elements are zero.
  flat = at::cat({flat, zeros({after - before}, spec.mesh(), {}, {.dtype = self.scalar_type()})});
  const CommCause cause = call_cause(op, "self", self);
  const at::Tensor resized = flat.view(sizes);
  share_contents(self, redistribute_below_autograd(resized, kept_placements(self, resized.dim()), cause));
}

// resize_(self, size, memory_format). If self grows, it gets new memory, and its aliases keep the old.
void resize(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto format = args["memory_format"].toOptional<at::MemoryFormat>();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !format || *format == at::MemoryFormat::Contiguous || *format == at::MemoryFormat::Preserve, op.operator_name(),
      ": memory_format ", *format, "; a distributed tensor is resized to row-major strides");
  resize_to(op, self, args["size"].toIntVector());
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(self);
}

// resize_as_(self, the_template, memory_format).
void resize_as(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const auto sizes = args.tensor("the_template").sizes().vec();
  if (is_dtensor(self)) {
    resize_to(op, self, sizes);
  } else {
    self.resize_(sizes);
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(self);
}

void check_source(const c10::OperatorHandle& op, const at::Tensor& self, const at::Tensor& source) {
  const bool is_set = op.schema().name() == "aten::set_";
  if (!is_dtensor(source)) throw_plain_in_place_of(is_set ? "set_" : "shallow_copy_data_", self, source);
  TORCH_CHECK(is_dtensor(self), op.operator_name(), ": a plain tensor cannot share the memory of a distributed one");
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), op.operator_name(), ": argument 'self' is of dtype ",
              self.scalar_type(), ", 'source' of ", source.scalar_type());
}

// set_(self, source): self shares the memory of source. torch::load() uses it to read into an existing tensor.
void set_from_tensor(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), source = args.tensor("source");
  check_source(op, self, source);
  share_contents(self, at::alias(source));
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(self);
}

// set_(self, source, storage_offset, size, stride).
void set_from_elements(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self"), source = args.tensor("source");
  check_source(op, self, source);
  const auto sizes = args["size"].toIntVector();
  auto strides = args["stride"].toIntVector();
  if (strides.empty()) {
    const Shape row_major = row_major_strides(sizes);
    strides.assign(row_major.begin(), row_major.end());
  }
  share_contents(self, at::as_strided(source, sizes, strides, args["storage_offset"].toInt()));
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(self);
}

// set_(self): self becomes empty.
void set_to_nothing(const c10::OperatorHandle& op, Stack& stack) {
  if (!op.schema().overload_name().empty()) return dispatch_by_rule(op, stack);  // a storage, which no rank has
  const at::Tensor self = Arguments(op, stack).tensor("self");
  share_contents(self, zeros({0}, spec_of(self)->mesh(), {}, {.dtype = self.scalar_type()}));
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(self);
}

}  // namespace

const RuleFamily resize_handlers("resize", [](RuleRegistry& registry) {
  registry.add_handler("aten::resize_", resize);
  registry.add_handler("aten::resize_as_", resize_as);
  registry.add_handler("aten::set_", set_to_nothing);
  registry.add_handler("aten::set_.source_Tensor", set_from_tensor);
  registry.add_handler("aten::shallow_copy_data_", set_from_tensor);
  registry.add_handler("aten::set_.source_Tensor_storage_offset", set_from_elements);
});

}  // namespace dtensor::internal
