// Operators that change a tensor's own metadata, and as_strided, which looks through the tensor at its memory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/AutogradState.h>

#include "dtensor/dispatch.h"
#include "dtensor/op_info.h"
#include "dtensor/representation.h"
#include "ops/movement.h"

namespace dtensor {
namespace {

using torch::jit::Stack;

// t_() is t(), and self becomes the result.
void change_self(const c10::OperatorHandle& op, Stack& stack) {
  std::string name = op.schema().name();
  name.pop_back();
  const std::string overload = name == "aten::transpose" ? "int" : op.schema().overload_name();
  const auto view = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const size_t num_args = op.schema().arguments().size();
  const at::Tensor self = torch::jit::peek(stack, 0, num_args).toTensor();
  view.callBoxed(stack);
  const at::Tensor viewed = torch::jit::pop(stack).toTensor();
  const DTensorMeta& result = meta_of(viewed);
  replace_contents(self, result.spec, result.locals, result.storage);
  stack.emplace_back(self);
}

void return_self(const c10::OperatorHandle&, Stack&) {}

// The global tensor has no memory to stride over. What asks for the geometry that is there anyway is served, and so is
// a replicated tensor, whose local parts lie in memory as the global one would.
void as_strided(const c10::OperatorHandle& op, Stack& stack) {
  const std::optional<int64_t> offset = stack.back().toOptional<int64_t>();
  const std::vector<int64_t> stride = torch::jit::peek(stack, 2, 4).toIntVector();
  const std::vector<int64_t> size = torch::jit::peek(stack, 1, 4).toIntVector();
  const at::Tensor self = torch::jit::peek(stack, 0, 4).toTensor();
  torch::jit::drop(stack, 4);
  const DTensorMeta& meta = meta_of(self);
  if (self.sizes() == size && self.strides() == stride && offset.value_or(0) == 0) {
    stack.emplace_back(at::alias(self));
    return;
  }
  bool as_global = meta.spec->is_replicated();
  for (const at::Tensor& local : meta.locals) as_global = as_global && local.strides() == self.strides();
  TORCH_CHECK_NOT_IMPLEMENTED(
      as_global, op.schema().name(), ": a distributed tensor laid out as ", to_string(meta.spec->placements()),
      " is not one piece of memory to take strides ", stride,
      " of. Use view, permute, slice and the like, or redistribute the tensor to Replicate() on all mesh dims first.");
  RankTensors locals;
  {
    LocalGuard guard;
    for (const at::Tensor& local : meta.locals) {
      locals.push_back(at::as_strided(local, size, stride, local.storage_offset() + offset.value_or(0)));
    }
  }
  c10::AutogradState::get_tls_state().set_view_replay_enabled(true);  // as dispatch() does for every view
  const TensorMeta result{Shape(size.begin(), size.end()), Shape(stride.begin(), stride.end()), self.scalar_type()};
  stack.emplace_back(make_view(Spec::get(meta.spec->mesh(), meta.spec->placements(), result), std::move(locals), self));
}

}  // namespace

void register_view_handlers() {
  for (const char* op : {"aten::t_", "aten::transpose_", "aten::squeeze_", "aten::unsqueeze_"})
    add_handler(op, change_self);
  add_handler("aten::detach_", return_self);
  add_handler("aten::as_strided", as_strided);
}

}  // namespace dtensor
