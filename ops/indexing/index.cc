// Indexing: registration, and everything that is not a rule. Masks among indices are converted to lists of indices
// first (their number depends on the data). Other operators whose result shape depends on the data run on whole
// tensors.
#include <ATen/core/Tensor.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>

#include "dtensor/dispatch/dispatch.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "ops/support/movement.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Runs on replicated inputs, locally on each rank; the data determine the result's shape. Not in an abstract world.
void run_whole(const c10::OperatorHandle& op, Stack& stack) {
  DispatchScopeGuard guard([](DispatchScope& s) { s.replicate_unsupported = true; });
  dispatch_by_rule(op, stack);
}

bool is_mask(const c10::IValue& v) {
  if (!v.isTensor() || !v.toTensor().defined()) return false;
  const auto dtype = v.toTensor().scalar_type();
  return dtype == c10::ScalarType::Bool || dtype == c10::ScalarType::Byte;
}

// Like LibTorch's warning.
void warn_of_bytes(const at::Tensor& mask) {
  if (mask.scalar_type() != c10::ScalarType::Byte) return;
  TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.");
}

// One index list per dim of each mask.
c10::List<std::optional<at::Tensor>> without_masks(const at::Tensor& self, at::ArrayRef<c10::IValue> indices) {
  c10::List<std::optional<at::Tensor>> result;
  for (const c10::IValue& value : indices) {
    if (!is_mask(value)) {
      result.push_back(value.isTensor() ? std::optional(value.toTensor()) : std::nullopt);
      continue;
    }
    const at::Tensor mask = value.toTensor();
    warn_of_bytes(mask);
    for (int64_t d = 0; d < mask.dim(); ++d) {
      const int64_t at = static_cast<int64_t>(result.size()) + d;
      TORCH_CHECK_INDEX(at < self.dim() && mask.size(d) == self.size(at), "The shape of the mask ", mask.sizes(),
                        " at index ", d, " does not match the shape of the indexed tensor ", self.sizes(), " at index ",
                        at);
    }
    const at::Tensor places = at::nonzero(mask);
    for (int64_t d = 0; d < mask.dim(); ++d) result.push_back(places.select(1, d));
    // A mask without dims selects all or nothing, along a new dim.
    TORCH_CHECK_NOT_IMPLEMENTED(mask.dim() > 0,
                                "indexing a distributed tensor with a mask of no dims is not supported");
  }
  return result;
}

void index(const c10::OperatorHandle& op, Stack& stack) {
  const size_t num_args = op.schema().arguments().size();
  const at::Tensor self = torch::jit::peek(stack, 0, num_args).toTensor();
  c10::IValue& indices = torch::jit::peek(stack, 1, num_args);
  const std::vector<c10::IValue> given = indices.toListRef().vec();
  if (std::any_of(given.begin(), given.end(), is_mask)) indices = without_masks(self, given);
  dispatch_by_rule(op, stack);
}

// x[mask] = number needs no list.
void index_put(const c10::OperatorHandle& op, Stack& stack) {
  const size_t num_args = op.schema().arguments().size();
  const auto arg = [&](size_t i) -> c10::IValue& { return torch::jit::peek(stack, i, num_args); };
  const at::Tensor self = arg(0).toTensor(), values = arg(2).toTensor();
  at::Tensor mask;
  bool alone = true;
  int64_t first = 0, dims = 0;
  for (const c10::IValue& v : arg(1).toListRef()) {
    if (v.isTensor() && v.toTensor().defined()) {
      alone = alone && !mask.defined() && v.toTensor().scalar_type() == c10::ScalarType::Bool;
      mask = v.toTensor();
      first = dims;
    }
    ++dims;
  }
  if (alone && mask.defined() && mask.dim() > 0 && is_dtensor(self) && values.numel() == 1 && !arg(3).toBool() &&
      first + mask.dim() <= self.dim() && mask.sizes() == self.sizes().slice(first, mask.dim())) {
    std::vector<int64_t> sizes = mask.sizes().vec();
    sizes.resize(self.dim() - first, 1);
    const bool in_place = op.schema().arguments()[0].alias_info() != nullptr;
    at::Tensor result = in_place ? self : self.clone();
    result.masked_fill_(mask.view(sizes), values.view(c10::IntArrayRef{}));
    result = write_out(Arguments(op, stack).out(), result, op);
    torch::jit::drop(stack, num_args);
    stack.emplace_back(result);
    return;
  }
  index(op, stack);
}

// Writes in place by the functional form: self may have any layout.
void write_through(const c10::OperatorHandle& op, Stack& stack) {
  at::Tensor self = torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor();
  if (!is_dtensor(self)) return dispatch_by_rule(op, stack);
  std::string name = op.schema().name();
  name.pop_back();
  const auto functional =
      c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), op.schema().overload_name().c_str());
  functional.callBoxed(stack);
  self.copy_(torch::jit::pop(stack).toTensor());
  stack.emplace_back(self);
}

// where(condition, self, other), whose condition may be of bytes.
void where(const c10::OperatorHandle& op, Stack& stack) {
  Arguments args(op, stack);
  if (const at::Tensor condition = args.tensor("condition"); condition.scalar_type() == c10::ScalarType::Byte) {
    TORCH_WARN_ONCE(
        "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version of "
        "PyTorch. Use a boolean condition instead.");
    args.set("condition", condition.to(at::kBool));
  }
  dispatch_by_rule(op, stack);
}

}  // namespace

const RuleFamily index_rules("index", [](RuleRegistry& registry) {
  for (const char* op : {"aten::index.Tensor", "aten::index.Tensor_out", "aten::_unsafe_index.Tensor"}) {
    registry.add_handler(op, index);
  }
  for (const char* op : {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index_put"}) {
    registry.add_handler(op, index_put);
  }
  registry.add_handler("aten::where.self", where);
  for (const char* op : {"aten::put_", "aten::masked_scatter_"}) registry.add_handler(op, write_through);
  for (const char* op :
       {"aten::nonzero", "aten::nonzero_static", "aten::masked_select", "aten::masked_scatter_backward",
        "aten::repeat_interleave.Tensor", "aten::_unique", "aten::_unique2", "aten::unique_dim",
        "aten::unique_consecutive", "aten::unique_dim_consecutive"}) {
    registry.add_handler(op, run_whole);
  }
});

}  // namespace dtensor::internal
